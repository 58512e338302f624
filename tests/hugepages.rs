//! The collector hugepages of the binary: on this machine, and on captured hosts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod captured;
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use captured::{Copied, Pools, pools_oracle, sizes_oracle};
use common::{Served, mrscope};

/// Values of a metric by its labels, in the order of the page.
fn samples(page: &str, metric: &str) -> Vec<(String, f64)> {
    let labels = |line: &str| {
        let rest = line.strip_prefix(metric)?.strip_prefix('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        Some((labels.to_owned(), value.parse().unwrap()))
    };
    page.lines().filter_map(labels).collect()
}

/// The only value of a metric without labels.
fn value(page: &str, metric: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok())
}

fn label(labels: &str, name: &str) -> u64 {
    let at = labels.find(&format!("{name}=\"")).unwrap() + name.len() + 2;
    labels[at..].split('"').next().unwrap().parse().unwrap()
}

fn pools(page: &str, metric: &str) -> Pools {
    let key = |labels: &str| {
        (u32::try_from(label(labels, "numa_node")).unwrap(), label(labels, "page_size"))
    };
    samples(page, metric).iter().map(|(labels, value)| (key(labels), *value as u64)).collect()
}

fn sizes(page: &str, metric: &str) -> BTreeMap<u64, u64> {
    let pairs = samples(page, metric);
    pairs.iter().map(|(labels, value)| (label(labels, "page_size"), *value as u64)).collect()
}

/// Oracle, scrape, oracle: what moved meanwhile tells nothing.
fn compare<T: PartialEq + std::fmt::Debug>(what: &str, before: &T, shown: &T, after: &T) {
    if before == after {
        assert_eq!(shown, before, "{what}");
    }
}

#[test]
fn this_machine_s_pools_are_what_sysfs_says() {
    const POOLS: [(&str, &str); 3] = [
        ("mrscope_hugepages_pool_bytes", "nr_hugepages"),
        ("mrscope_hugepages_free_bytes", "free_hugepages"),
        ("mrscope_hugepages_surplus_bytes", "surplus_hugepages"),
    ];
    const SIZES: [(&str, &str); 2] = [
        ("mrscope_hugepages_reserved_bytes", "resv_hugepages"),
        ("mrscope_hugepages_overcommit_limit_bytes", "nr_overcommit_hugepages"),
    ];
    let root = Path::new("/");
    let oracle = || {
        (
            POOLS.map(|(_, file)| pools_oracle(root, file)),
            SIZES.map(|(_, file)| sizes_oracle(root, file)),
        )
    };
    let served = Served::start(&[]);
    let before = oracle();
    let page = served.get("/metrics").1;
    let after = oracle();
    for (at, (metric, _)) in POOLS.iter().enumerate() {
        compare(metric, &before.0[at], &pools(&page, metric), &after.0[at]);
    }
    for (at, (metric, _)) in SIZES.iter().enumerate() {
        compare(metric, &before.1[at], &sizes(&page, metric), &after.1[at]);
    }
    // No page comes or goes with its size or node, which are compared whatever moved.
    let keys = |pools: &Pools| pools.keys().copied().collect::<Vec<_>>();
    assert_eq!(keys(&pools(&page, POOLS[0].0)), keys(&before.0[0]));
    let state = "mrscope_collector_state{collector=\"hugepages\",state=\"ok\"} 1\n";
    assert!(page.contains(state), "{page}");
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert_eq!(value(&page, "mrscope_memory_total_bytes"), Some((kib << 10) as f64));
}

/// mrscope on a captured host.
fn serve(host: &Copied) -> Served {
    let mut command = mrscope();
    command.args(["--web.listen-address", "127.0.0.1:0"]);
    command.arg("--path.procfs").arg(host.at("proc"));
    command.arg("--path.sysfs").arg(host.at("sys"));
    Served::spawn(command, 1)
}

fn state(page: &str) -> String {
    let states = samples(page, "mrscope_collector_state");
    let of = |(labels, value): &&(String, f64)| labels.contains("\"hugepages\"") && *value > 0.0;
    let mut now = states.iter().filter(of).map(|(labels, _)| labels.rsplit('"').nth(1).unwrap());
    let state = now.next().unwrap().to_owned();
    assert_eq!(now.next(), None);
    state
}

#[test]
fn a_state_is_logged_when_it_changes_and_not_at_each_scrape() {
    let host = Copied::of("eight_nodes", "journal");
    let wrong = |said: &str| host.write("proc/meminfo", &meminfo(&host, said));
    wrong("x1 kB");
    let mut served = serve(&host);
    let page = served.get("/metrics").1;
    assert_eq!(state(&page), "failed");
    assert_eq!(value(&page, "mrscope_memory_total_bytes"), None);
    assert_eq!(value(&page, "mrscope_memory_mlocked_bytes"), Some(1024.0 * 1024.0));
    assert_eq!(pools(&page, "mrscope_hugepages_pool_bytes").len(), 16);
    // The same trouble with another figure is no news.
    for said in ["x2 kB", "x3 kB", "18014398509481984 kB"] {
        wrong(said);
        assert_eq!(state(&served.get("/metrics").1), "failed");
    }
    wrong("7 kB");
    let page = served.get("/metrics").1;
    assert_eq!(
        (state(&page).as_str(), value(&page, "mrscope_memory_total_bytes")),
        ("ok", Some(7168.0))
    );
    served.get("/metrics");
    served.signal("-TERM");
    served.wait();
    let log = served.said.join("\n") + "\n" + &served.rest_of_log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("collector hugepages")).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let reason = "/proc/meminfo: line 1: expected \\\"MemTotal: KIB kB\\\", KIB below 2^54";
    assert!(lines[0].contains("failed") && lines[0].contains(reason), "{}", lines[0]);
    assert!(lines[1].contains("collector hugepages: ok"), "{}", lines[1]);
}

/// The captured text with another MemTotal.
fn meminfo(host: &Copied, total: &str) -> String {
    let text = std::fs::read_to_string(host.at("proc/meminfo")).unwrap();
    let rest = text.split_once('\n').unwrap().1;
    format!("MemTotal: {total}\n{rest}")
}

/// What only root may read is denied to others, and nothing else is.
#[test]
fn what_may_not_be_read_is_denied_and_the_rest_is_shown() {
    let host = Copied::of("eight_nodes", "denied");
    let file = host.at("sys/devices/system/node/node3/hugepages/hugepages-2048kB/free_hugepages");
    assert!(Command::new("chmod").arg("000").arg(&file).status().unwrap().success());
    // Without CAP_DAC_OVERRIDE a file's mode binds root too.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-all", "--inh-caps", "-all", "--"]);
    command.args([env!("CARGO_BIN_EXE_mrscope"), "--web.listen-address", "127.0.0.1:0"]);
    command.arg("--path.procfs").arg(host.at("proc"));
    command.arg("--path.sysfs").arg(host.at("sys"));
    let served = Served::spawn(command, 1);
    let page = served.get("/metrics").1;
    assert_eq!(state(&page), "denied");
    assert_eq!(pools(&page, "mrscope_hugepages_pool_bytes").len(), 16);
    assert_eq!(pools(&page, "mrscope_hugepages_free_bytes").len(), 15);
    let said = served.said.iter().find(|line| line.contains("collector hugepages")).unwrap();
    assert!(said.contains("free_hugepages: Permission denied"), "{said}");
}

#[test]
fn a_host_without_hugepages_is_ok_and_has_none_of_their_series() {
    let host = Copied::of("no_hugetlb", "none");
    let page = serve(&host).get("/metrics").1;
    assert_eq!(state(&page), "ok");
    assert!(
        !page.contains("mrscope_hugepages_") && !page.contains("mrscope_transparent_"),
        "{page}"
    );
    assert_eq!(value(&page, "mrscope_memory_total_bytes"), Some(8_192_000.0 * 1024.0));
}
