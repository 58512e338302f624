//! The binary on the machine's own kernel, whatever that can do: it starts, serves, says what is
//! missing, and stops. Nothing here needs RDMA.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use common::{Served, run};

#[test]
fn it_serves_whatever_this_kernel_can_do() {
    let served = Served::start(&[]);
    let (head, page) = served.get("/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(page.contains("mrscope_build_info{version="), "{page}");
    // In one state, and in no more than one.
    let states: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("mrscope_collector_state{collector=\"mr\""))
        .filter(|line| line.ends_with(" 1"))
        .collect();
    assert_eq!(states.len(), 1, "{states:?}");
}

/// Whoever locks memory and can be seen in /proc is on the page, whichever way the list is read.
#[test]
fn who_locks_memory_is_on_the_page() {
    let locked = |pid: &str| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok().filter(|kib| *kib > 0)
    };
    let page = Served::start(&[]).get("/metrics").1;
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = folders.filter_map(|folder| folder.file_name().into_string().ok());
    // One that came or went meanwhile is asked for twice.
    for pid in pids.filter(|pid| locked(pid).is_some()) {
        let series = page.lines().any(|line| {
            line.starts_with("mrscope_process_locked_bytes")
                && line.contains(&format!("pid=\"{pid}\""))
        });
        assert!(series || locked(&pid).is_none(), "{pid} is missing:\n{page}");
    }
}

#[test]
fn every_path_answers_as_it_should() {
    let served = Served::start(&[]);
    for (path, status, text) in [
        ("/", "200", "<a href=\"/metrics\">"),
        ("/-/healthy", "200", "healthy"),
        ("/-/ready", "200", "ready"),
        ("/nowhere", "404", ""),
    ] {
        let (head, body) = served.get(path);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{path}: {head}");
        assert!(body.contains(text), "{path}: {body}");
    }
    let (head, _) = served.request("POST /metrics HTTP/1.1\r\nContent-Length: 0");
    assert!(head.starts_with("http/1.1 405"), "{head}");
}

#[test]
fn collect_asks_for_the_figures_of_some_collectors() {
    let served = Served::start(&["--no-collector.devices"]);
    let (_, page) = served.get("/metrics?collect[]=exporter");
    assert!(page.contains("mrscope_build_info{") && !page.contains("mrscope_memory_"), "{page}");
    let (_, page) = served.get("/metrics?collect%5B%5D=exporter&collect[]=hugepages&other=1");
    assert!(page.contains("mrscope_build_info{") && page.contains("mrscope_memory_"), "{page}");
    for (asked, said) in [
        ("mrs", "unknown collector \"mrs\", expected one of mr, process, mlock"),
        ("devices", "the collector devices is switched off"),
    ] {
        let (head, body) = served.get(&format!("/metrics?collect[]={asked}"));
        assert!(head.starts_with("http/1.1 400"), "{head}");
        assert!(body.starts_with(said), "{body}");
    }
}

/// Name of each thread, and its capabilities: permitted, in effect.
fn capabilities(pid: u32) -> Vec<(String, u64, u64)> {
    std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .map(|thread| {
            let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
            let value =
                |key| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
            let mask = |key| u64::from_str_radix(value(key), 16).unwrap();
            (value("Name:").to_owned(), mask("CapPrm:"), mask("CapEff:"))
        })
        .collect()
}

#[test]
fn no_thread_has_a_right_in_effect_and_few_keep_any() {
    const SYS_PTRACE: u64 = 1 << 19;
    /// CAP_PERFMON and CAP_SYS_ADMIN.
    const COUNTING: u64 = 1 << 38 | 1 << 21;
    /// CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE and CAP_SYS_ADMIN.
    const SAMPLING: u64 = 1 << 1 | 1 << 2 | SYS_PTRACE | 1 << 21;
    let served = Served::start(&[]);
    let (_, page) = served.get("/metrics");
    let by_proc = page.contains("mrscope_program_attached{attach=\"none\",program=\"tasks\"} 0\n");
    let threads = capabilities(served.pid());
    let named = |name: &str| threads.iter().filter(|(thread, ..)| thread.starts_with(name)).count();
    assert!(named("tokio") > 0 && named("mrscope") > 0 && named("processes") > 0, "{threads:?}");
    for (thread, permitted, effective) in &threads {
        assert_eq!(*effective, 0, "{thread} of {threads:?}");
        match thread.as_str() {
            "events" => assert_ne!(*permitted, 0, "{threads:?}"),
            "processes" if by_proc => assert_eq!(*permitted, SYS_PTRACE, "{threads:?}"),
            // To name the programs of others.
            "pages" => assert_eq!(*permitted, SYS_PTRACE, "{threads:?}"),
            // To sample, as long as the kernel's programs look at no pages.
            "placement" => assert_eq!(permitted & !SAMPLING, 0, "{threads:?}"),
            // Where the CPUs have none nothing is kept to open counters.
            "tlb" if has_counters() => assert_eq!(permitted & !COUNTING, 0, "{threads:?}"),
            _ => assert_eq!(*permitted, 0, "{thread} of {threads:?}"),
        }
    }
}

#[test]
fn no_right_is_kept_to_name_programs_that_are_not_shown() {
    for flags in [&["--process.labels", "comm"][..], &["--no-collector.process"]] {
        let served = Served::start(flags);
        served.get("/metrics");
        let threads = capabilities(served.pid());
        let pages: Vec<_> = threads.iter().filter(|(thread, ..)| thread == "pages").collect();
        assert_eq!(pages, [&("pages".to_owned(), 0, 0)], "{flags:?}: {threads:?}");
    }
}

/// Whether the kernel knows counters of these CPUs.
fn has_counters() -> bool {
    let sources = std::fs::read_dir("/sys/bus/event_source/devices").unwrap().flatten();
    let names = sources.filter_map(|source| source.file_name().into_string().ok());
    names.into_iter().any(|name| name.starts_with("cpu") || name.starts_with("armv8_"))
}

#[test]
fn tlb_misses_are_counted_or_it_is_said_that_the_cpus_have_no_counters() {
    let served = Served::start(&[]);
    let page = served.get("/metrics?collect[]=tlb").1;
    let state = |state: &str| {
        page.contains(&format!(
            "mrscope_collector_state{{collector=\"tlb\",state=\"{state}\"}} 1\n"
        ))
    };
    if has_counters() {
        assert!(state("ok") || state("no_data"), "{page}");
        return;
    }
    assert!(state("unsupported"), "{page}");
    for event in ["access", "miss"] {
        let event =
            format!("mrscope_tlb_event_counted{{event=\"{event}\",op=\"load\",tlb=\"data\"}} 0\n");
        assert!(page.contains(&event), "{page}");
    }
    assert!(!page.contains("mrscope_tlb_misses_total{"), "{page}");
    assert!(page.contains("mrscope_scrape_collector_success{collector=\"tlb\"} 1\n"), "{page}");
    let why = "collector tlb: unsupported: this machine's CPUs show no performance counters";
    assert!(served.said.iter().any(|line| line.contains(why)), "{:?}", served.said);
}

/// Root without a bounding set has none; a kernel that lets everybody load BPF is not Debian's.
fn without_capabilities() -> Served {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-all", "--inh-caps", "-all", "--"]).args([
        env!("CARGO_BIN_EXE_mrscope"),
        "--web.listen-address",
        "127.0.0.1:0",
    ]);
    Served::spawn(command, 1)
}

#[test]
fn what_counters_take_is_refused_with_what_helps() {
    let served = without_capabilities();
    let page = served.get("/metrics").1;
    // Without counters the kernel says so before it asks for rights, or after.
    let denied = "mrscope_collector_state{collector=\"tlb\",state=\"denied\"} 1\n";
    assert!(page.contains(denied), "{page}");
    let why =
        "collector tlb: denied: dtlb_load (access): the kernel refuses counters; lacking: CAP_";
    assert!(served.said.iter().any(|line| line.contains(why)), "{:?}", served.said);
}

/// BPF maps that a process holds, by its open files.
fn maps(pid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("bpf-map")).count()
}

#[test]
fn what_is_switched_off_has_nothing_in_the_kernel() {
    let with = Served::start(&[]);
    assert!(with.get("/metrics").1.contains("program=\"umem_get\""));
    let without = Served::start(&["--no-collector.mr", "--no-collector.mlock"]);
    let (_, page) = without.get("/metrics");
    assert!(page.contains("mrscope_collector_state{collector=\"mr\",state=\"off\"} 1\n"), "{page}");
    assert!(!page.contains("mrscope_mr_") && !page.contains("program=\"umem_get\""), "{page}");
    assert_eq!(maps(without.pid()), 0);
}

#[test]
fn gzip_comes_when_asked_and_is_the_same_page() {
    let served = Served::start(&[]);
    let (head, plain) = served.get("/metrics");
    assert!(!head.contains("content-encoding"), "{head}");
    let (head, packed) = served.request("GET /metrics HTTP/1.0\r\nAccept-Encoding: gzip");
    assert!(head.contains("content-encoding: gzip"), "{head}");
    let mut gzip = Command::new("gzip")
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    gzip.stdin.take().unwrap().write_all(&packed).unwrap();
    let unpacked = String::from_utf8(gzip.wait_with_output().unwrap().stdout).unwrap();
    let names = |page: &str| -> Vec<String> {
        page.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name.into()).collect()
    };
    assert_eq!(names(&unpacked), names(&plain));
}

#[test]
fn a_scraper_that_sends_nothing_holds_up_nobody_and_no_stop() {
    let mut served = Served::start(&[]);
    let _silent: Vec<_> = (0..300).map(|_| TcpStream::connect(served.address()).unwrap()).collect();
    assert!(served.get("/metrics").0.starts_with("http/1.1 200"));
    served.signal("-TERM");
    assert!(served.wait().success());
}

/// Those that say nothing are dropped, and never take the files that the sources need.
#[test]
fn silent_connections_leave_room_for_a_scrape_and_for_the_sources() {
    let mut command = Command::new("prlimit");
    command.args(["--nofile=100:100", env!("CARGO_BIN_EXE_mrscope")]);
    command.args(["--web.listen-address", "127.0.0.1:0"]);
    let served = Served::spawn(command, 1);
    let _silent: Vec<_> = (0..90).map(|_| TcpStream::connect(served.address()).unwrap()).collect();
    let (head, page) = served.get("/metrics");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let state = "mrscope_collector_state{collector=\"process\",state=\"ok\"} 1\n";
    assert!(page.contains(state), "{page}");
}

#[test]
fn term_and_interrupt_end_it_well() {
    for signal in ["-TERM", "-INT"] {
        let mut served = Served::start(&[]);
        served.signal(signal);
        assert!(served.wait().success(), "{signal}");
        let rest = served.rest_of_log();
        assert!(rest.contains("stopping"), "{rest}");
    }
}

#[test]
fn a_taken_port_is_named_on_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, said) = run(&["--web.listen-address", &address]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&address) && said.contains("expected a free address"), "{said}");
}

#[test]
fn without_capabilities_it_is_denied_and_no_success() {
    let served = without_capabilities();
    let (_, page) = served.get("/metrics");
    assert!(
        page.contains("mrscope_collector_state{collector=\"mr\",state=\"denied\"} 1\n"),
        "{page}"
    );
    assert!(page.contains("mrscope_scrape_collector_success{collector=\"mr\"} 0\n"), "{page}");
    assert!(
        page.contains("mrscope_scrape_collector_success{collector=\"exporter\"} 1\n"),
        "{page}"
    );
}
