//! The counters on CPUs that count: a guest whose emulated TLBs are known, and loops in it whose
//! misses can be told beforehand. The guest runs mrscope's own files; here its figures are judged.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// 16,384 pages, ten times: no TLB there holds so many.
const MISSES: i64 = 163_840;
/// What comes on top: the calls that read the counters, and what else a thread touches.
const FEW: i64 = 100;

/// What the guest printed, booted once.
fn guest() -> &'static BTreeMap<String, String> {
    static GUEST: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    GUEST.get_or_init(|| {
        let tree = script("tree.sh", &[]);
        let initrd = script("build.sh", &[tree.trim()]);
        let said = script("boot.sh", &[tree.trim(), initrd.trim()]);
        println!("{said}");
        let figures = said.lines().filter_map(|line| {
            let (name, value) = line.trim_end_matches('\r').split_once(' ')?;
            Some((name.to_owned(), value.to_owned()))
        });
        assert!(
            said.lines().any(|line| line.trim() == "end"),
            "it did not come to its end:\n{said}"
        );
        figures.collect()
    })
}

/// What a script of the guest prints.
fn script(name: &str, arguments: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/riscv64").join(name);
    let output = Command::new(path).args(arguments).stderr(Stdio::inherit()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}: {}\n{said}", output.status);
    said
}

fn word(name: &str) -> &'static str {
    guest().get(name).unwrap_or_else(|| panic!("the guest said nothing of {name}"))
}

fn figure(name: &str) -> i64 {
    word(name).parse().unwrap_or_else(|_| panic!("{name} is {}", word(name)))
}

fn assert_all_missed(name: &str) {
    let count = figure(name);
    assert!(
        (count - MISSES).abs() <= MISSES / 100,
        "{name} is {count}, expected {MISSES} or 1 % of it more or less"
    );
}

fn assert_few(name: &str) {
    let count = figure(name);
    assert!((0..=FEW).contains(&count), "{name} is {count}, expected at most {FEW}");
}

#[test]
fn each_page_of_many_misses_once_a_round() {
    assert_all_missed("thread_read_loads");
    assert_few("thread_read_stores");
    assert_all_missed("thread_write_stores");
    assert_few("thread_write_loads");
}

#[test]
fn one_page_misses_once_and_idleness_never() {
    for work in ["idle", "one_page"] {
        assert_few(&format!("thread_{work}_loads"));
        assert_few(&format!("thread_{work}_stores"));
    }
}

#[test]
fn a_walk_over_more_than_a_tlb_holds_misses_at_each_access_and_over_less_never() {
    let (accesses, misses) = (figure("walk_many_accesses"), figure("walk_many_loads"));
    assert!(accesses >= 16_384, "{accesses}");
    assert!((misses - accesses).abs() <= accesses / 100, "{misses} misses of {accesses}");
    assert_few("walk_many_stores");
    assert!(figure("walk_few_accesses") >= 16_384);
    assert_few("walk_few_loads");
    assert_few("walk_few_stores");
}

#[test]
fn a_thread_that_is_created_later_is_counted_with_its_creator() {
    assert_all_missed("thread_of_thread_loads");
}

#[test]
fn an_event_that_the_cpu_lacks_is_absent_and_takes_no_other_with_it() {
    assert_eq!(word("absent_thread"), "0 Absent");
    assert_eq!(word("absent_cpu"), "0 Absent");
    assert_eq!(word("absent_second"), "1 Absent");
    assert_eq!(word("cpus_access"), "Refused { cpu: 0, why: Absent }");
    assert_eq!(word("cpus_miss"), "Counted");
    assert!(figure("cpus_pair_loads") >= figure("thread_read_loads") - FEW);
}

#[test]
fn all_cpus_count_what_a_thread_does_and_more() {
    assert_eq!(figure("cpus"), 2);
    assert!(figure("cpus_pair_loads") >= MISSES, "{}", figure("cpus_pair_loads"));
    assert!(figure("cpus_write_stores") >= MISSES, "{}", figure("cpus_write_stores"));
    // Not all of the other kind: that is the kernel's part.
    assert!(figure("cpus_write_loads") < MISSES / 2, "{}", figure("cpus_write_loads"));
    assert!(figure("cpus_cycles") > MISSES, "{}", figure("cpus_cycles"));
    assert_eq!(figure("cpus_node"), 0);
    assert!(figure("cpus_running_ns") > 0);
    assert_eq!(figure("cpus_enabled_ns"), figure("cpus_running_ns"));
}

#[test]
fn a_cpu_that_goes_and_comes_back_is_counted_on_again_and_no_total_falls() {
    assert_eq!(word("hotplug_open"), "Silent");
    for reading in ["before", "back", "again", "away", "left", "returned"] {
        assert_eq!(word(&format!("hotplug_{reading}")), "Counted", "{reading}");
        let more = figure(&format!("hotplug_{reading}_loads"));
        let expected = if matches!(reading, "before" | "again" | "left") { MISSES } else { 0 };
        assert!(more >= expected, "{reading}: {more}, expected at least {expected}");
    }
    assert_eq!(word("hotplug_open_offline"), "Some(CpuGone)");
}

/// Why they are opened anew: the kernel lets neither count again.
#[test]
fn counters_of_a_cpu_that_went_are_dead() {
    assert_eq!(word("hotplug_dead_group"), "true");
    assert_eq!(word("hotplug_dead_single"), "true");
}
