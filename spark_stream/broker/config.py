"""The configuration of a broker: defaults, then the file, then ISOLOG_* variables, then flags.

The file is TOML. Dotted names are written as they are (``segment.bytes = 1048576``): TOML reads
them as nested tables, and they are joined again here.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from msgspec import Struct
from pydantic import (
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from spark_stream.broker.access.jwts import JwtSettings
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.stores.backends import ETCD_LEASE_S, EtcdPlace, parse_place
from spark_stream.cluster.stores.leases import DURATION_S
from spark_stream.directories import local_directory
from spark_stream.errors import InvalidConfig
from spark_stream.schema.keys import PARTITION_BY
from spark_stream.schema.schemas import meant
from spark_stream.scripts.transactions.finishing import TransactionSettings
from spark_stream.storage.settings import SETTINGS, LogSettings, parse_settings
from spark_stream.transport.tls import TlsFiles
from spark_stream.wire.addresses import UNIX, is_wildcard, joined, split_address, with_port
from spark_stream.wire.allocator import MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_CORE: Final = CoreSettings()
G = TypeVar("G", bound=Struct)
_UNKNOWN: Final = ("extra_forbidden", "unexpected_keyword_argument")
"""pydantic's types of errors for a name that a model or a dataclass does not have."""

_NUMBER, _WHOLE, _TEXT = "takes a number", "takes a whole number", "takes a text"
_TABLE: Final = "takes a table of names and values"

_WORDS: Final = {
    "bool_parsing": "takes true | false",
    "bool_type": "takes true | false",
    "dataclass_type": _TABLE,
    "dict_type": _TABLE,
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "takes a number above {gt}",
    "greater_than_equal": "takes a number from {ge} on",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "less_than": "takes a number below {lt}",
    "less_than_equal": "takes a number up to {le}",
    "literal_error": "takes {expected}",
    "model_type": _TABLE,
    "path_type": "takes a path",
    "string_type": _TEXT,
    "tuple_type": "takes a list",
    "missing": "is missing",
}


@dataclass(frozen=True)
class MetadataTls(TlsFiles):
    """The files for connections to etcd."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    setting = "metadata_tls"


@dataclass(frozen=True)
class TlsSettings(TlsFiles):
    """The TLS settings of a listener, which uses no TLS without ``cert``.

    ``ca``: the authorities of accepted client certificates. A client must show one if
    ``require_client_cert``. ``min_version``: the oldest version of TLS that is accepted.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    require_client_cert: bool = False
    min_version: Literal["1.2", "1.3"] = "1.2"


@dataclass(frozen=True)
class PeerTls(TlsSettings):
    """The TLS settings of the listener for other brokers."""

    setting = "peer_tls"


class BrokerConfig(BaseSettings):
    """A broker's configuration.

    ``listen``: the address for clients: ``host:port`` (port 0: any free one) or ``unix:PATH``.
    ``peer_listen``: the address for the other brokers of the cluster. By default it is a free port
    of the same host, or none if ``listen`` is a Unix socket. ``advertise``: the address that
    clients and other brokers use, if it differs: ``host`` or ``host:port``. It is required if
    ``listen`` stands for all addresses of the machine (0.0.0.0). ``peer_addresses`` maps ids of
    brokers to the addresses at which this broker reaches them, where these differ from the
    registered ones.

    ``authentication``: whether callers have to authenticate, and rules decide on their permissions.
    ``super_users``: principals that may do everything. ``jwt``: an issuer whose JSON Web Tokens
    authenticate callers. All of these are the same for all brokers of a cluster. ``tls``: the
    certificate for clients, those of Flight too. ``peer_tls``: the one for the other brokers. They
    have to show one too, issued by an authority in ``ca``, with the broker's id among its names.

    ``id`` names the broker in a new directory (1 to 200 of a-z A-Z 0-9 _ -). By default one is
    generated. ``rack`` is the broker's rack: replicas of a partition go to different racks, and it
    serves readers in its rack. ``metadata`` is the metadata store that the brokers of a cluster
    share: ``sqlite:///PATH`` or a path, if they are on one host, or ``etcd://HOST:PORT,…/NAME``. By
    default it is a file in ``dir``, for a lone broker. ``metadata_tls``, ``metadata_user`` and
    ``metadata_password``: for etcd. It is reached with TLS if ``metadata_tls.ca`` is set.

    ``lease_seconds``: the time for which the others consider the broker alive without a renewal.
    The default is 3, or 6 with etcd, which takes 2 to 3 s to elect a leader.
    ``sink_expiry_seconds``: the time for which an unused id of a sink is kept. Both are the same
    for all brokers of a cluster.

    ``default_replication_factor``: the number of replicas of a topic that is created without one.
    The default is the number of brokers that are not being decommissioned, at most three. While
    some of these are dead, it is the number of live ones, but no fewer than
    ``min.insync.replicas``. ``leader_balance_seconds``: the time for which a partition's preferred
    leader must be alive and in sync before it leads again. With 0 it leads again only on request.

    ``flight_listen``: the address of Arrow Flight, for clients in other languages, by default none.
    ``metrics_listen``: ``host:port`` of metrics and health, which any client may read, by default
    none. ``kafka_listen``: ``host:port`` of a Kafka gateway that the broker starts as another
    process, by default none. ``kafka_peers``: the addresses of the other gateways of the cluster.
    ``kafka_ca``: the authority of the brokers' certificates, by default that of ``peer_tls``, or
    else those of the system.

    ``idle_seconds``: the broker ends after this time without a call. With 0 it never does.
    ``memory_bytes``: the memory that all batches may take together. ``producer_expiry_seconds``:
    the time for which an idle producer is remembered. ``scrub_bytes_per_second``: the speed at
    which segments are read to detect damage. With 0 they are not read. ``scrub_seconds``: the least
    time between the starts of two such passes. ``housekeeping_seconds``: the pause between two
    rounds that roll and remove segments, remove expired producers, and store high watermarks.
    ``mapped_reads``: whether readers of this host may map the log's files. ``log_level``: the least
    level that is logged. ``topic``: the defaults of topics (``segment.bytes`` …).
    """

    model_config = SettingsConfigDict(env_prefix="ISOLOG_", extra="forbid", frozen=True)

    dir: Path
    id: str | None = None
    rack: str | None = None
    metadata: str | None = None
    metadata_tls: MetadataTls = MetadataTls()
    metadata_user: str = ""
    metadata_password: SecretStr = SecretStr("")
    listen: str = "127.0.0.1:9092"
    peer_listen: str = ""
    flight_listen: str = ""
    metrics_listen: str = ""
    kafka_listen: str = ""
    kafka_peers: tuple[str, ...] = ()
    kafka_ca: str | None = None
    authentication: bool = False
    super_users: tuple[str, ...] = ()
    jwt: JwtSettings | None = None
    tls: TlsSettings = TlsSettings()
    peer_tls: PeerTls = PeerTls()
    advertise: str | None = None
    idle_seconds: float = Field(default=0.0, ge=0.0)
    memory_bytes: int = Field(default=MEMORY_BYTES_DEFAULT, ge=MEMORY_BYTES_MIN, le=1 << 40)
    lease_seconds: float | None = Field(default=None, ge=0.5, le=3600.0)
    leader_balance_seconds: float = Field(default=_CORE.leader_balance_seconds, ge=0.0, le=86_400.0)
    peer_addresses: dict[str, str] = {}
    default_replication_factor: int | None = Field(default=None, ge=1)
    housekeeping_seconds: float = Field(default=1.0, gt=0.0, le=3600.0)
    producer_expiry_seconds: float = Field(
        default=_CORE.producer_expiry_seconds, gt=0.0, le=31_536_000.0
    )
    sink_expiry_seconds: float = Field(
        default=_CORE.transactions.sink_expiry_seconds, gt=0.0, le=315_360_000.0
    )
    mapped_reads: bool = True
    scrub_bytes_per_second: int = Field(default=8 << 20, ge=0, le=1 << 40)
    scrub_seconds: float = Field(default=86_400.0, gt=0.0, le=31_536_000.0)
    log_level: str = "INFO"
    topic: dict[str, Any] = {}

    @field_validator("topic")
    @classmethod
    def _flat(cls, value: dict[str, Any]) -> dict[str, Any]:
        found = flattened(value)
        if str(found.get(PARTITION_BY, "")).strip():
            raise ValueError(f"{PARTITION_BY} has no default: set it for each topic")
        return found

    @field_validator("dir", mode="before")
    @classmethod
    def _dir(cls, value: object) -> object:
        # A Path was resolved before, and may have any name.
        return local_directory(value, "dir", "listen") if isinstance(value, str) else value

    @field_validator("id")
    @classmethod
    def _id(cls, value: str | None) -> str | None:
        if value is not None and not _ID.fullmatch(value):
            raise ValueError(f"takes 1 to 200 of a-z A-Z 0-9 _ -, not {value!r}")
        return value

    @field_validator("metadata", mode="before")
    @classmethod
    def _metadata(cls, value: object) -> object:
        if value is not None:
            parse_place(str(value))
        return None if value is None else str(value)

    @field_validator("listen", "peer_listen", "flight_listen")
    @classmethod
    def _listen(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.field_name != "listen":
            return value
        if value.startswith(UNIX) and value != UNIX:
            return value
        try:
            split_address(value)
        except ValueError as error:
            raise ValueError(f"{error} or unix:PATH") from None
        return value

    @field_validator("metrics_listen", "kafka_listen")
    @classmethod
    def _port(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @field_validator("kafka_peers")
    @classmethod
    def _kafka_peers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            split_address(each)
        return value

    @field_validator("advertise")
    @classmethod
    def _advertise(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                host, port = split_address(with_port(value, 1))
            except ValueError:
                raise ValueError(f"{value!r} is not host or host:port") from None
            if is_wildcard(host) or not port:
                raise ValueError(f"{value!r} is not an address that a client can connect to")
        return value

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        for name, listen in (("listen", self.listen), ("kafka_listen", self.kafka_listen)):
            if self.advertise is not None or not listen or listen.startswith(UNIX):
                continue
            host, port = split_address(listen)
            if is_wildcard(host):
                raise InvalidConfig(
                    f"{name}: {listen} stands for all addresses of this machine, and clients"
                    " cannot connect to it: the broker has to advertise one that they can",
                    hint=f"Give --advertise HOST or HOST:{port}, with a name of this machine that"
                    " clients resolve (in a file: advertise; as a variable: ISOLOG_ADVERTISE).",
                    setting="advertise",
                )
        return self

    @model_validator(mode="after")
    def _fits_gateway(self) -> Self:
        if self.kafka_listen and (self.tls.require_client_cert or self.tls.min_version != "1.2"):
            raise InvalidConfig(
                "kafka_listen: the gateway of a broker has no client certificate, and accepts"
                " TLS 1.2",
                hint="Leave out require_client_cert and min_version of [tls].",
                setting="kafka_listen",
            )
        return self

    @model_validator(mode="after")
    def _fits_etcd(self) -> Self:
        if not isinstance(self.place, EtcdPlace):
            return self
        if self.metadata_tls.cert is not None and self.metadata_tls.ca is None:
            raise InvalidConfig(
                "metadata_tls.ca: name the authority that issued etcd's certificates",
                setting="metadata_tls.ca",
            )
        if self.listen.startswith(UNIX):
            raise InvalidConfig(
                f"listen: other hosts cannot connect to {self.listen}, but metadata in etcd is for"
                " brokers on several hosts",
                hint="Listen on HOST:PORT.",
                setting="listen",
            )
        if self.lease_s < ETCD_LEASE_S:
            raise InvalidConfig(
                f"lease_seconds: {self.lease_s:g} is too short for etcd, which may take 3 s to"
                f" elect a leader: give {ETCD_LEASE_S:g} or more",
                setting="lease_seconds",
            )
        return self

    @model_validator(mode="after")
    def _peers_know_each_other(self) -> Self:
        given = self.peer_tls
        if self.authentication and given.cert is None and self.peer_listen:
            raise InvalidConfig(
                "peer_listen with authentication: without [peer_tls] any client could pose as a"
                " broker",
                hint="Give peer_tls.cert, key and ca, as in conf/secure-three-brokers.",
                setting="peer_tls",
            )
        if given.cert is not None and given.ca is None:
            raise InvalidConfig(
                "peer_tls.ca: name the authority that issues the brokers' certificates",
                setting="peer_tls.ca",
            )
        return self

    @field_validator("log_level")
    @classmethod
    def _level(cls, value: str) -> str:
        levels = ("DEBUG", "INFO", "WARNING", "ERROR")
        if value.upper() not in levels:
            raise ValueError(f"takes {' | '.join(levels)}, not {value!r}")
        return value.upper()

    @property
    def peer_place(self) -> str:
        """The listening address for other brokers, or empty for none."""
        is_closed = self.authentication and self.peer_tls.cert is None  # no peer could be trusted
        if self.peer_listen or self.listen.startswith(UNIX) or is_closed:
            return self.peer_listen
        return joined(split_address(self.listen)[0], 0)

    @property
    def replication(self) -> ReplicationSettings:
        """The settings of this broker's replication streams."""
        return ReplicationSettings(beat_s=self.lease_s / 3, death_s=self.lease_s)

    @property
    def place(self) -> Path | EtcdPlace | None:
        """The place of the shared metadata store, or None for a lone broker's own."""
        return None if self.metadata is None else parse_place(self.metadata)

    @property
    def lease_s(self) -> float:
        """The duration of the broker's lease without a renewal."""
        default = ETCD_LEASE_S if isinstance(self.place, EtcdPlace) else DURATION_S
        return default if self.lease_seconds is None else self.lease_seconds

    @property
    def core(self) -> CoreSettings:
        """The settings of the broker's core."""
        return _group(self, CoreSettings)

    @property
    def transactions(self) -> TransactionSettings:
        """The settings of transactions."""
        return _group(self, TransactionSettings)

    @property
    def recent_bytes(self) -> int:
        """The limit of the memory that keeps batches for followers."""
        return min(_CORE.recent_bytes, self.memory_bytes // 8)

    @property
    def topic_defaults(self) -> LogSettings:
        """The settings of a topic that sets nothing itself."""
        return parse_settings(self.topic)

    @classmethod
    def load(cls, file: Path | None, **flags: Any) -> Self:
        """Load the configuration. ``flags`` win over everything, unless they are None.

        Raises:
            InvalidConfig: The file cannot be read, a name is unknown, or a value is bad. The error
                names it.
        """
        values = _read(file) if file is not None else {}
        given = {name: value for name, value in flags.items() if value is not None}
        try:
            # pydantic-settings lets arguments win over variables: the file must lose to them.
            config = cls(**(_without_environment(values) | given))
        except ValidationError as error:
            found = error.errors(include_url=False)
            # Unknown names come first: a missing name may be misspelt as one of them.
            first = min(found, key=lambda each: each["type"] not in _UNKNOWN)
            name = ".".join(str(part) for part in first["loc"])
            unknown = first["type"] in _UNKNOWN
            message = "there is no such setting" if unknown else problem_of(first)
            if unknown and len(first["loc"]) == 1:
                message += meant(name, cls.model_fields)
            if unknown and name in {setting.partition(".")[0] for setting in SETTINGS}:
                message = "the defaults of topics belong under [topic]"
            raise InvalidConfig(f"{name}: {message}", setting=name) from None
        except SettingsError as error:  # a variable for JSON has other text
            name = str(error).partition('"')[2].partition('"')[0]
            raise InvalidConfig(
                f"{name}: the variable ISOLOG_{name.upper()} is not JSON",
                hint='It takes names and values, such as {"name": "value"}.',
                setting=name,
            ) from None
        _ = config.topic_defaults
        return config


def _group(config: BrokerConfig, of: type[G]) -> G:
    """Return a group of settings, each from the attribute of its name."""
    return of(**{name: getattr(config, name) for name in of.__struct_fields__})


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``{"segment": {"bytes": 1}}`` as ``{"segment.bytes": 1}``."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as source:
            return tomllib.load(source)
    except OSError as error:
        raise InvalidConfig(f"{file}: {error.strerror}", setting="conf") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{file}: not TOML: {error}", setting="conf") from error


def _without_environment(values: Mapping[str, Any]) -> dict[str, Any]:
    present = {name.lower() for name in os.environ}
    return {name: each for name, each in values.items() if f"isolog_{name.lower()}" not in present}


def problem_of(refused: Mapping[str, Any]) -> str:
    """Describe one of the ``errors()`` of pydantic's ValidationError in our words."""
    words = _WORDS.get(refused["type"])
    if words is None:
        return str(refused["msg"]).removeprefix("Value error, ")  # pydantic's own prefix
    if refused["type"] == "missing":
        return words
    return f"{words.format(**refused.get('ctx', {}))}, not {refused['input']!r}"
