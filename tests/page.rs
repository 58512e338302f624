//! The whole page of a fixed snapshot, byte for byte, and what promtool thinks of it.
//! `BLESS=1` writes the golden page anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

mod recorded;

use mrscope::collector::{Engine, EngineOptions};
use mrscope::ebpf::{EventsError, KernelEvents};
use mrscope::host::Host;
use mrscope::ledger::LedgerOptions;
use mrscope::model::ProcessLabel;
use recorded::{Listed, Recorded, openers, snapshot, tasks};

fn render(
    events: impl FnOnce() -> Result<Box<dyn KernelEvents>, EventsError> + Send + 'static,
) -> String {
    render_with(EngineOptions::default(), events, &[])
}

fn render_with(
    options: EngineOptions,
    events: impl FnOnce() -> Result<Box<dyn KernelEvents>, EventsError> + Send + 'static,
    collect: &[&str],
) -> String {
    let host = Host::at("tests/fixtures/hosts/two_devices");
    let openers = openers(events, Listed(tasks()));
    let (pages, engine) = Engine::start(host, options, openers).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let choice = pages.choose(collect).unwrap();
    let page = runtime.block_on(pages.get(choice)).unwrap();
    drop(pages);
    engine.join().unwrap();
    // How long a collector took, and when it compared or read, are the only figures that no snapshot fixes.
    let fixed = |line: &&str| {
        !line.starts_with("mrscope_scrape_collector_duration_seconds{")
            && !line.starts_with("mrscope_ledger_compared_timestamp_seconds{")
            && !line.starts_with("mrscope_placement_read_timestamp_seconds ")
    };
    String::from_utf8(page.to_vec())
        .unwrap()
        .lines()
        .filter(fixed)
        .fold(String::new(), |page, line| page + line + "\n")
}

fn promtool_check(page: &str) -> (bool, String) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed by scripts/need.sh test");
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_page_is_the_golden_page() {
    let page = render(|| Ok(Box::new(Recorded(snapshot()))));
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/page.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
        std::fs::write(&golden, &page).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    let hint = "the page changed; BLESS=1 cargo test --test page writes it anew";
    for (line, wanted) in page.lines().zip(expected.lines()) {
        assert_eq!(line, wanted, "{hint}");
    }
    assert_eq!(page.lines().count(), expected.lines().count(), "{hint}");
}

#[test]
fn promtool_finds_nothing_on_the_page_and_something_on_a_wrong_one() {
    let page = render(|| Ok(Box::new(Recorded(snapshot()))));
    assert_eq!(promtool_check(&page), (true, String::new()));
    let (good, _) = promtool_check(&page.replace("# HELP mrscope_mr_active ", "# HELP other "));
    assert!(!good);
}

#[test]
fn without_events_the_page_says_so_and_claims_no_zero() {
    for (error, state) in [
        (EventsError::Denied("Operation not permitted".into()), "denied"),
        (EventsError::Unsupported("no BPF".into()), "unsupported"),
    ] {
        let page = render(move || Err(error));
        let expected = format!("mrscope_collector_state{{collector=\"mr\",state=\"{state}\"}} 1\n");
        assert!(page.contains(&expected), "{page}");
        let success = u8::from(state == "unsupported");
        let line = format!("mrscope_scrape_collector_success{{collector=\"mr\"}} {success}\n");
        assert!(page.contains(&line), "{page}");
        assert!(!page.contains("mrscope_mr_") && !page.contains("mrscope_process_mr_"), "{page}");
        assert!(page.contains("mrscope_build_info"), "{page}");
        // What needs no events is there all the same.
        let locked = "mrscope_process_locked_bytes{comm=\"locker \u{fffd}\",pid=\"4194307\"}";
        assert!(page.contains(&format!("{locked} {}\n", 3 << 20)), "{page}");
        assert!(page.contains("mrscope_rdma_device_info"), "{page}");
    }
}

#[test]
fn a_collector_that_is_off_says_so_and_nothing_else() {
    let options = EngineOptions { off: vec!["process"], ..EngineOptions::default() };
    let page = render_with(options, || Ok(Box::new(Recorded(snapshot()))), &[]);
    let off = "mrscope_collector_state{collector=\"process\",state=\"off\"} 1\n";
    assert!(page.contains(off), "{page}");
    assert!(!page.contains("mrscope_scrape_collector_success{collector=\"process\"}"), "{page}");
    assert!(!page.contains("mrscope_process_pinned_bytes"), "{page}");
    assert!(page.contains("mrscope_process_mr_active{"), "{page}");
}

#[test]
fn a_page_of_chosen_collectors_has_them_alone() {
    let page = render_with(
        EngineOptions::default(),
        || Ok(Box::new(Recorded(snapshot()))),
        &["devices", "process"],
    );
    assert!(page.contains("mrscope_rdma_device_info"), "{page}");
    assert!(page.contains("mrscope_process_pinned_bytes"), "{page}");
    // How they did is told too, or an empty page would look like a good one.
    assert!(page.contains("mrscope_scrape_collector_success{collector=\"devices\"} 1\n"), "{page}");
    assert!(!page.contains("collector=\"mr\""), "{page}");
    assert!(!page.contains("mrscope_mr_") && !page.contains("mrscope_build_info"), "{page}");
}

#[test]
fn processes_can_be_told_apart_by_other_labels() {
    let options = EngineOptions { labels: vec![ProcessLabel::Comm], ..EngineOptions::default() };
    let options = EngineOptions {
        ledger: LedgerOptions { labels_name_one: false, ..options.ledger.clone() },
        ..options
    };
    let page = render_with(options, || Ok(Box::new(Recorded(snapshot()))), &[]);
    assert!(page.contains("mrscope_process_pinned_bytes{comm=\"python3\"} 12349440\n"), "{page}");
    assert!(page.contains("mrscope_process_mr_active{comm=\"python3\"} 2\n"), "{page}");
    assert!(!page.contains("pid="), "{page}");
    assert!(!page.contains("mrscope_process_start_time_seconds"), "{page}");
}
