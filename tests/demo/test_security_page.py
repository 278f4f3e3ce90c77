"""The steps of the page on security: certificates, brokers, users, rules, a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.demo.clusters import three_brokers
from tests.demo.conftest import Shell

SET_UP = """
isolog certs create certs/ 1 2 3
for n in 1 2 3; do
  isolog broker start --conf conf/secure-three-brokers/broker-$n.toml --daemon
done
export ISOLOG_PASSWORD="correct horse" ISOLOG_NEW_PASSWORD="correct horse"
isolog user add admin --metadata isolog-data/metadata.sqlite
export ISOLOG_TLS_CA=certs/ca.pem
isolog --user admin topic create flights --replication-factor 3
seq 100 | isolog --user admin produce flights --isolation read_committed
isolog --user admin user add alice
isolog --user admin acl allow alice read 'topic:flights*'
isolog --user admin token create --for alice --expires 30d --only 'read topic:flights' > etl.token
isolog --user admin acl check alice read topic:flights
"""
AS_ALICE = """
export ISOLOG_PASSWORD="correct horse" ISOLOG_TLS_CA=certs/ca.pem
isolog --user alice consume flights -n 100 | wc -l
isolog --token-file etl.token consume flights -n 100 | wc -l
isolog --user alice produce flights <<< x 2>&1 || true
env -u ISOLOG_PASSWORD isolog topic list 2>&1 || true
ISOLOG_TLS_CA= isolog --user alice topic list 2>&1 || true
"""
A_LEADER_DIES = """
export ISOLOG_PASSWORD="correct horse" ISOLOG_TLS_CA=certs/ca.pem
isolog broker stop --dir isolog-data/broker-1
isolog certs create certs/ 2 3
seq 100 | isolog --user admin produce flights --isolation read_committed
isolog --user alice consume flights -n 200 | wc -l
"""


# tests/system/access has each of its steps.
@pytest.mark.full
def test_steps_to_a_protected_cluster(tmp_path: Path, shell: Shell) -> None:
    with three_brokers(tmp_path, shell) as run:
        assert "allowed" in run(SET_UP)
        said = run(AS_ALICE)
        assert said.split()[:2] == ["100", "100"]
        assert "'alice' may not write topic:flights" in said
        assert "requires authentication" in said
        assert "speaks TLS, and the client does not" in said
        assert run(A_LEADER_DIES).split()[-1] == "200"
