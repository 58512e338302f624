use std::path::Path;
use std::process::Command;

use super::*;

fn at(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

fn collector(collector: &'static str, state: &'static str, reason: &str) -> CollectorStatus {
    CollectorStatus { collector, state, reason: reason.to_owned() }
}

fn failure() -> FailedRegistration {
    FailedRegistration {
        at: at(1_700_000_000_250),
        age: Duration::from_millis(61_750),
        pid: 4_194_305,
        comm: "python3".to_owned(),
        device: "mlx5_0".to_owned(),
        errno: "ENOMEM".to_owned(),
        cause: "memlock_limit",
        meaning: "what it has pinned is `too` much",
        remedy: "Raise it.",
        kind: "host",
        range: Some((0x7f00_0000_1000, 1_048_577)),
        memlock_bytes: Some(8 << 20),
        pinned_bytes: 8_384_512,
        memlock_exempt: false,
    }
}

fn status(failures: Vec<FailedRegistration>) -> Status {
    Status {
        at: at(1_700_000_062_000),
        collectors: vec![
            collector("mr", "ok", ""),
            collector("tlb", "unsupported", "no event <dTLB-loads> & \"no\" 'PMU'"),
            collector("devices", "off", ""),
        ],
        failures: Ok(failures),
    }
}

/// A name is anybody's bytes, at most 15 of them.
const HOSTILE: &str = "<img src=x one'";

#[test]
fn the_page_is_the_golden_page() {
    let hostile = FailedRegistration {
        comm: HOSTILE.to_owned(),
        device: "<b>&\"".to_owned(),
        range: None,
        memlock_bytes: None,
        pinned_bytes: 0,
        memlock_exempt: true,
        ..failure()
    };
    let page = html("/metrics", Some(&status(vec![failure(), hostile])));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/status.html");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, &page).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(page, expected, "BLESS=1 cargo test --lib serve writes it anew");
}

#[test]
fn what_others_named_is_text_and_never_markup() {
    let hostile = FailedRegistration {
        comm: HOSTILE.to_owned(),
        device: HOSTILE.to_owned(),
        errno: HOSTILE.to_owned(),
        ..failure()
    };
    let mut told = status(vec![hostile]);
    told.collectors[0].reason = HOSTILE.to_owned();
    let shown = html("/metrics", Some(&told));
    let denied = Status { failures: Err(HOSTILE.to_owned()), ..told };
    for (page, times) in [(shown, 4), (html("/metrics", Some(&denied)), 2)] {
        assert!(!page.contains("<img"), "{page}");
        assert_eq!(page.matches("&lt;img src=x one&#39;").count(), times, "{page}");
    }
}

#[test]
fn the_newest_fifty_are_shown_and_the_others_are_told() {
    let many: Vec<_> = (1..=60).map(|pid| FailedRegistration { pid, ..failure() }).collect();
    let page = html("/metrics", Some(&status(many.clone())));
    assert!(page.contains("<td>50</td>") && !page.contains("<td>51</td>"), "{page}");
    assert!(page.contains("10 older ones are not shown"), "{page}");
    let page = html("/metrics", Some(&status(many[..50].to_vec())));
    assert!(page.contains("<td>50</td>") && !page.contains("not shown"), "{page}");
}

#[test]
fn without_a_failure_or_a_reading_the_page_says_so() {
    assert!(html("/metrics", Some(&status(Vec::new()))).contains("None was seen."));
    let page = html("/metrics", None);
    assert!(page.contains("Nothing is read yet.") && !page.contains("<table>"), "{page}");
}

#[test]
fn a_time_is_what_date_says() {
    for seconds in
        [0, 951_782_399, 951_782_400, 1_700_000_000, 1_709_164_800, 4_107_542_400, 4_107_542_399]
    {
        let said = Command::new("date")
            .args(["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:%M:%S.000Z"])
            .output()
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert_eq!(rfc3339(at(seconds * 1000)), said.trim());
    }
}

#[test]
fn figures_are_exact_and_ages_are_short() {
    let told = [0, 4095, 4096, 1 << 20, (1 << 20) + 4096, 3 << 30].map(bytes);
    assert_eq!(told, ["0 B", "4095 B", "4 KiB", "1 MiB", "1028 KiB", "3 GiB"]);
    let told = [59, 60, 3599, 3600, 86_399, 90_000].map(|s| age(Duration::from_secs(s)));
    assert_eq!(told, ["59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "23 h 59 min", "1 d 1 h"]);
}
