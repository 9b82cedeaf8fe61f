# waitgate in two stages: built with the Rust image, run on a small Debian as a user of its own, with a redis-server beside it.
#
#   docker build -t waitgate .
#   docker run --rm waitgate demo --once
#   docker run -d --name waitgate -p 8080:8080 --stop-timeout 30 \
#     -v "$PWD/waitgate.toml:/etc/waitgate/waitgate.toml:ro" -v waitgate:/var/lib/waitgate waitgate
#
# In a container the settings want `server.listen = "0.0.0.0:8080"` and, unless `store.url` names a Redis of yours, keep `store.data_dir` as it
# is or say "/var/lib/waitgate". The stop's patience should be longer than `server.drain_timeout`. The operators' listener stays on the
# container's loopback: `docker exec waitgate waitgate room list`. Tokens and passwords are files that you mount (`ops.token_file`,
# `store.url_file`); the image holds none.

FROM rust:1-bookworm AS build
WORKDIR /build
COPY . .
RUN cargo build --release --locked --bin waitgate

FROM debian:bookworm-slim
# Paths in the settings are relative to their file: by the link the default `waitgate-data` is the volume.
RUN apt-get update \
 && apt-get install -y --no-install-recommends redis-server \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/waitgate --shell /usr/sbin/nologin waitgate \
 && install -d -o waitgate -g waitgate -m 0700 /var/lib/waitgate \
 && install -d /etc/waitgate \
 && ln -s /var/lib/waitgate /etc/waitgate/waitgate-data
COPY --from=build /build/target/release/waitgate /usr/local/bin/waitgate
COPY LICENSE /usr/share/doc/waitgate/LICENSE
USER 10001:10001
WORKDIR /var/lib/waitgate
VOLUME /var/lib/waitgate
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["waitgate", "room", "health"]
ENTRYPOINT ["waitgate"]
CMD ["serve", "--config", "/etc/waitgate/waitgate.toml"]
