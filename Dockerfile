# mrscope in a container. It watches the host, so it runs as root and needs, besides
# --privileged (BPF, perf events, tracefs):
#   --pid=host                                     pids and processes are those of the host
#   --network=host                                 /sys/class/infiniband shows the host's devices
#   --cgroupns=host                                cgroups are those of the host
#   -v /sys/kernel/tracing:/sys/kernel/tracing     where kprobes are set
FROM rust:1.95-bookworm AS build
# What scripts/need.sh names for a build.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates clang-14 gcc libc6-dev libelf-dev libibverbs-dev librdmacm-dev make \
        pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bins

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="mrscope" \
      org.opencontainers.image.description="Prometheus exporter for RDMA memory" \
      org.opencontainers.image.licenses="Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"
RUN apt-get update \
    && apt-get install -y --no-install-recommends ibverbs-providers libelf1 libibverbs1 zlib1g \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/LICENSE /usr/share/doc/mrscope/LICENSE
COPY --from=build /src/target/release/mrscope /src/target/release/mrscope-write-probe /usr/bin/
EXPOSE 10042
ENTRYPOINT ["/usr/bin/mrscope"]
