# Two images from one file. docker-compose.yml uses both.
#
#   broker   the log, its command line and its Python client:        docker build --target broker -t isolog .
#   demo     that, PySpark, a Java, and the flights of 2013:         docker build --target demo -t isolog-demo .

# Bookworm is the Debian whose Java is a 17.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
RUN python -m venv /opt/isolog
ENV PATH=/opt/isolog/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY setup.cfg setup.py pyproject.toml README.md LICENSE pyspark_isolog.py pytest_isolog.py ./
COPY conf conf
COPY isolog isolog
COPY spark_stream spark_stream
RUN pip install '.[certs,kafka,lake,metrics]'

FROM build AS build-demo
RUN pip install '.[certs,demo,kafka,lake,metrics]'

FROM ${PYTHON} AS broker
RUN useradd --uid 10001 --create-home isolog && install -d -o isolog -g isolog /var/lib/isolog /var/lib/lake \
        /etc/isolog/certs /etc/isolog/authority /etc/isolog/gateway
COPY --from=build /opt/isolog /opt/isolog
COPY conf/broker.toml /etc/isolog/broker.toml
ENV PATH=/opt/isolog/bin:$PATH PYTHONUNBUFFERED=1
USER isolog
WORKDIR /home/isolog
EXPOSE 9092
# For a broker whose port is published on this host. -e ISOLOG_ADVERTISE=NAME:PORT sets another name.
ENV ISOLOG_ADVERTISE=localhost:9092
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 \
    CMD ["isolog", "broker", "status", "--bootstrap", "127.0.0.1:9092"]
CMD ["isolog", "broker", "start", "--conf", "/etc/isolog/broker.toml", \
     "--dir", "/var/lib/isolog", "--listen", "0.0.0.0:9092"]

FROM broker AS demo
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o isolog -g isolog /demo /demo/demo-output
COPY --from=build-demo /opt/isolog /opt/isolog
COPY conf /demo/conf
COPY examples /demo/examples
# Spark starts its workers with the second name.
ENV SPARK_CONF_DIR=conf PYSPARK_PYTHON=/opt/isolog/bin/python
USER isolog
WORKDIR /demo
HEALTHCHECK NONE
CMD ["spark-submit", "examples/flights_demo.py"]
