use super::*;
use crate::probe::Pages;

const ROW: Row = Row { pages: Pages::Base, node: Some(0), place: None, touched: true };

fn common(rounds: u32) -> Common {
    Common {
        device: "rxe0".into(),
        port: 2,
        mr_bytes: 64 << 20,
        rounds,
        base_page_bytes: 4096,
        parent: Some(7),
    }
}

fn rows() -> [Row; 3] {
    let huge = Row { pages: Pages::Huge1G, node: Some(1), ..ROW };
    [ROW, Row { touched: false, ..ROW }, huge]
}

#[test]
fn rounds_go_through_all_rows_before_the_next() {
    let mut asked = Vec::new();
    let ask = |options: &ProbeOptions, _| {
        asked.push((options.pages, options.untouched));
        Err(NoReport::TimedOut(Duration::from_secs(1)))
    };
    let mut said = Vec::new();
    let ran = run(&common(2), &rows(), ask, |at| said.push(at.to_string())).unwrap();
    let round = [(Pages::Base, false), (Pages::Base, true), (Pages::Huge1G, false)];
    assert_eq!(asked, [round, round].concat());
    assert_eq!(said[0], "round 1 of 2: 4K on node 0 (0 of 6 done)");
    assert_eq!(said[4], "round 2 of 2: 4K on node 0, untouched (4 of 6 done)");
    assert_eq!(ran.ended, None);
    for row in &ran.rows {
        let faults: Vec<_> = row.faults.iter().map(|it| (it.round, it.reason.as_str())).collect();
        assert_eq!(faults, [(1, "timeout"), (2, "timeout")]);
        assert_eq!((row.rounds, row.registration_ns), (0, None));
    }
}

#[test]
fn a_stop_or_a_probe_that_hangs_is_the_end_of_it() {
    let mut asked = 0;
    let ask = |_: &ProbeOptions, _| {
        asked += 1;
        Err(if asked < 5 { NoReport::Garbage("x".into()) } else { NoReport::Stopped })
    };
    let ran = run(&common(3), &rows(), ask, |_| ()).unwrap();
    assert_eq!((asked, ran.ended.as_deref()), (5, Some("stopped in round 2 of 3")));
    assert_eq!(ran.rows[0].faults.len(), 2);
    assert_eq!(ran.rows[1].faults.len(), 1);

    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut child = Some(child);
    let mut asked = 0;
    let ask = |_: &ProbeOptions, _| {
        asked += 1;
        Err(NoReport::Stuck(child.take().unwrap()))
    };
    let ran = run(&common(3), &rows(), ask, |_| ()).unwrap();
    assert_eq!(asked, 1);
    assert!(ran.ended.unwrap().contains("after round 1, in which it hung"));
    assert_eq!(ran.rows[0].faults[0].reason, "stuck");
}

#[test]
fn without_the_program_there_is_one_reason_for_all() {
    let ask = |_: &ProbeOptions, _| Err(NoReport::NotStarted("no program".into()));
    assert_eq!(run(&common(3), &rows(), ask, |_| ()).unwrap_err(), "no program");
}

#[test]
fn a_row_is_asked_for_in_full_and_in_bounds() {
    let (options, timeout) = common(1).asked(&ROW);
    assert_eq!(ProbeOptions::parse(options.arguments()), Ok(options.clone()));
    assert_eq!((options.mr_bytes, options.message_bytes), (64 << 20, 64 << 10));
    assert_eq!((options.port, options.numa_node, options.parent), (2, Some(0), Some(7)));
    assert!(options.tlb && !options.untouched && !options.fallback);
    assert!(timeout > Duration::from_millis(options.guard_ms));
    let (untouched, _) = common(1).asked(&Row { touched: false, ..ROW });
    assert!(untouched.untouched && !untouched.tlb);
    // By the page that is filled, not by the part of it that is registered.
    let (huge, _) = common(1).asked(&rows()[2]);
    assert_eq!((options.guard_ms, huge.guard_ms), (11_875, 40_000));
    for mr_bytes in [4096, 8192, 1 << 40] {
        let (options, _) = Common { mr_bytes, ..common(1) }.asked(&ROW);
        assert_eq!(ProbeOptions::parse(options.arguments()), Ok(options), "{mr_bytes}");
    }
}
