use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::bench::outcome::Fault;
use crate::bench::plan::{LeftOut, Row};
use crate::probe::{Pages, Report};

fn report(registration_ns: u64, rate: u64, tlb: Option<(u64, u64)>) -> Report {
    Report {
        device: "mlx5_0".into(),
        port: 1,
        gid_index: None,
        gid: None,
        gid_type: None,
        mtu_bytes: 4096,
        port_rate_bytes_per_second: rate,
        max_mr: None,
        max_mr_size: None,
        pages: Pages::Base,
        page_size_bytes: 4096,
        fallback: None,
        numa_node: Some(0),
        mr_bytes: 64 << 20,
        touched: true,
        registration_ns,
        deregistration_ns: registration_ns / 3,
        message_bytes: 65536,
        depth: 16,
        writes: 256,
        bytes: 256 << 16,
        elapsed_ns: 1_342_177,
        bandwidth_bytes_per_second: Report::bandwidth(256 << 16, 1_342_177),
        latency_message_bytes: 8,
        latency_p50_ns: 2345,
        latency_p99_ns: 9876,
        latency_samples: 1000,
        tlb_accesses: tlb.map(|(accesses, _)| accesses),
        tlb_misses: tlb.map(|(_, misses)| misses),
        tlb_unavailable: None,
    }
}

fn row(pages: Pages, node: u32, place: Place, touched: bool) -> Row {
    Row { pages, node: Some(node), place: Some(place), touched }
}

fn outcome(rows: Vec<Measured>) -> Outcome {
    Outcome {
        mrscope_version: "0.1.0",
        kernel: "6.1.0-57-amd64".into(),
        device: "mlx5_0".into(),
        port: 1,
        device_numa_node: Some(0),
        port_rate_bytes_per_second: Some(25_000_000_000),
        mr_bytes: 64 << 20,
        message_bytes: 65536,
        rounds: 5,
        complete: true,
        rows,
        left_out: Vec::new(),
        notes: Vec::new(),
        suggestions: Vec::new(),
    }
}

#[test]
fn a_table_is_this_text() {
    let fault =
        |round, detail: &str| Fault { round, reason: "no_hugepages".into(), detail: detail.into() };
    let rate = 25_000_000_000;
    let counted = [report(3_214_567, rate, Some((1000, 987))), report(3_000_000, rate, None)];
    let faults = vec![fault(1, "mmap (ENOMEM): taken"), fault(2, "x"), fault(3, "x")];
    let mut shown = outcome(vec![
        Measured::of(&row(Pages::Base, 0, Place::Near, true), 4096, &counted, Vec::new()),
        Measured::of(
            &row(Pages::Transparent, 1, Place::Far, false),
            4096,
            &[report(10, 0, None)],
            Vec::new(),
        ),
        Measured::of(&row(Pages::Huge1G, 1, Place::Far, true), 4096, &[], faults),
    ]);
    let left_out = LeftOut { what: "2M on node 1".into(), why: "0 of 32 are free. ".repeat(9) };
    shown.left_out.push(left_out);
    shown.notes.push("one".into());
    shown.suggestions.push("Nothing.".into());
    let expected = "\
mlx5_0 port 1 of 200 Gb/s, MRs of 64 MiB, medians of 5 rounds, kernel 6.1.0-57-amd64

pages  node  place     memory  register  per GiB  deregister  TLB misses  bandwidth  of rate  p50  p99
                                     ms       ms          ms   % of acc.       Gb/s        %   µs   µs
   4K     0   near    touched     3.107    49.72       1.036       98.70    100.000     50.0  2.3  9.9
  THP     1    far  untouched     0.000     0.00       0.000           -    100.000        -  2.3  9.9
   1G     1    far    touched         -        -           -           -          -        -    -    -

Left out:
  2M on node 1: 0 of 32 are free. 0 of 32 are free. 0 of 32 are free. 0 of 32 are free. 0 of 32 are free. 0 of 32 are
    free. 0 of 32 are free. 0 of 32 are free. 0 of 32 are free. \n
Failed:
  1G on node 1, round 1: no_hugepages: mmap (ENOMEM): taken
  1G on node 1, rounds 2, 3: no_hugepages: x

Notes:
  one

What the rows suggest:
  Nothing.
";
    assert_eq!(text(&shown), expected);
}

#[test]
fn what_many_rows_failed_by_is_told_once() {
    let fault = || Fault { round: 2, reason: "permission".into(), detail: "why".into() };
    let failed = |pages| Measured::of(&row(pages, 0, Place::Near, true), 4096, &[], vec![fault()]);
    let rows = Pages::ALL.map(failed);
    assert_eq!(faults(&rows[..1]), ["4K on node 0, round 2: permission: why"]);
    let two = "4K on node 0, round 2; THP on node 0, round 2: permission: why";
    assert_eq!(faults(&rows[..2]), [two]);
    assert_eq!(faults(&rows), ["4K on node 0, round 2, and 3 more rows: permission: why"]);
}

#[test]
fn where_nothing_is_measured_there_is_no_table() {
    let mut shown = outcome(Vec::new());
    shown.rounds = 1;
    shown.port_rate_bytes_per_second = None;
    assert_eq!(
        text(&shown),
        "mlx5_0 port 1 of unknown rate, MRs of 64 MiB, medians of 1 round, kernel 6.1.0-57-amd64\n"
    );
}

/// What a column of the text says, by its unit, of what the JSON says.
fn expected(row: &Value) -> Vec<String> {
    let median = |key: &str, scale: f64, digits: usize| {
        let median = row[key]["median"].as_f64();
        median.map_or(NONE.to_owned(), |median| format!("{:.digits$}", median * scale))
    };
    let plain = |key: &str, scale: f64, digits: usize| {
        row[key].as_f64().map_or(NONE.to_owned(), |it| format!("{:.digits$}", it * scale))
    };
    let word = |key: &str| row[key].as_str().unwrap_or(NONE).to_owned();
    vec![
        word("pages"),
        row["numa_node"].as_u64().map_or(NONE.to_owned(), |node| node.to_string()),
        word("place"),
        if row["touched"] == true { "touched" } else { "untouched" }.to_owned(),
        median("registration_ns", 1e-6, 3),
        plain("registration_ms_per_gib", 1.0, 2),
        median("deregistration_ns", 1e-6, 3),
        median("tlb_misses_per_access", 100.0, 2),
        median("bandwidth_bytes_per_second", 8e-9, 3),
        plain("bandwidth_share", 100.0, 1),
        median("latency_p50_ns", 1e-3, 1),
        median("latency_p99_ns", 1e-3, 1),
    ]
}

/// A figure in which the last digit may be rounded either way.
fn alike(a: &str, b: &str) -> bool {
    let digits = |text: &str| text.split_once('.').map_or(0, |(_, digits)| digits.len() as i32);
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(one), Ok(other)) => {
            digits(a) == digits(b) && (one - other).abs() < 1.5 * 10_f64.powi(-digits(a))
        }
        _ => a == b,
    }
}

proptest! {
    #[test]
    fn the_text_has_the_figures_of_the_json_and_fits(
        registrations in proptest::collection::vec(1_u64..1_000_000_000_000, 0..6),
        tlb in proptest::option::of((1_u64..1 << 20, 0_u64..1 << 20)),
        rate in 0_u64..100_000_000_000,
        pages in 0_usize..4,
        near in any::<bool>(),
        touched in any::<bool>(),
    ) {
        let place = if near { Place::Near } else { Place::Far };
        let row = row(Pages::ALL[pages], 12, place, touched);
        let reports: Vec<_> = registrations.iter().map(|ns| report(*ns, rate, tlb)).collect();
        let shown = outcome(vec![Measured::of(&row, 65536, &reports, Vec::new())]);
        let json: Value = serde_json::from_str(&shown.json().unwrap()).unwrap();
        let text = text(&shown);
        let line = text.lines().nth(4).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let expected = expected(&json["rows"][0]);
        prop_assert_eq!(words.len(), expected.len());
        for (word, expected) in words.iter().zip(&expected) {
            prop_assert!(alike(word, expected), "{} is not {}: {}", word, expected, line);
        }
        prop_assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{}", text);
    }
}
