//! One process of a made-up /proc, over several readings.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::host::Host;
use crate::model::{Memory, ProcessLabel, Task};

use super::*;

/// A /proc with one process in it.
struct Tree(PathBuf);

impl Tree {
    fn with(name: &str, tgid: u32, ticks: u64) -> Self {
        let root = std::env::temp_dir().join(format!("mrscope-who-{}-{name}", std::process::id()));
        fs::create_dir_all(root.join("proc/self/ns")).unwrap();
        symlink("pid:[4026531836]", root.join("proc/self/ns/pid")).unwrap();
        fs::create_dir_all(root.join(format!("proc/{tgid}"))).unwrap();
        let stat = format!(
            "{tgid} (x) S 1 7 7 0 -1 0 1 0 0 0 1 1 0 0 20 0 1 0 {ticks} 1000 10 \
             18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        );
        fs::write(root.join(format!("proc/{tgid}/stat")), stat).unwrap();
        let tree = Self(root);
        tree.move_to(tgid, "/system.slice/one.service");
        tree.run(tgid, "/opt/one");
        tree
    }

    fn move_to(&self, tgid: u32, cgroup: &str) {
        fs::write(self.0.join(format!("proc/{tgid}/cgroup")), format!("0::{cgroup}\n")).unwrap();
    }

    fn run(&self, tgid: u32, program: &str) {
        let exe = self.0.join(format!("proc/{tgid}/exe"));
        let _ = fs::remove_file(&exe);
        symlink(program, exe).unwrap();
    }

    fn labeller(&self) -> Labeller {
        Labeller::new(Host::at(&self.0), vec![ProcessLabel::Pid, ProcessLabel::Comm])
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const KEY: ProcessKey = ProcessKey { tgid: 7, start_ns: 5_000_000_001 };

fn shown(key: Option<ProcessKey>) -> Vec<Shown> {
    let labels = ["7".to_owned(), "x".to_owned()].into();
    vec![Shown {
        labels,
        counters: None,
        locks: None,
        gauges: None,
        memory: None,
        key,
        members: key.into_iter().collect(),
    }]
}

fn list(name: &[u8], key: ProcessKey) -> Tasks {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name);
    let rows = vec![Task { key, comm, memory: Some(Memory::default()) }];
    Tasks { rows, exact: true, whole: true, unread: None }
}

fn told(who: &Who) -> Option<[String; 3]> {
    let known = who.of(&shown(None)[0].labels)?;
    let [comm, exe, _, _, _, _, _, unit] = known.values();
    Some([comm, exe, unit].map(str::to_owned))
}

fn all(comm: &str, exe: &str, unit: &str) -> [String; 3] {
    [comm, exe, unit].map(str::to_owned)
}

#[test]
fn a_process_is_looked_at_once_and_again_when_its_name_changes() {
    let tree = Tree::with("name", 7, 500);
    let (mut labeller, mut who) = (tree.labeller(), Who::new(true));
    let mut see = |who: &mut Who, name: &[u8]| {
        who.keep_up(&shown(Some(KEY)), Some(&list(name, KEY)), &[], &mut labeller);
        told(who)
    };
    assert_eq!(see(&mut who, b"sh"), Some(all("sh", "/opt/one", "one.service")));
    // Exec, and a move, between two readings.
    tree.run(7, "/opt/two");
    tree.move_to(7, "/system.slice/two.service");
    assert_eq!(see(&mut who, b"sh"), Some(all("sh", "/opt/one", "one.service")));
    assert_eq!(see(&mut who, b"two"), Some(all("two", "/opt/two", "two.service")));
    // Without a list nothing is known to have changed.
    tree.run(7, "/opt/three");
    who.keep_up(&shown(Some(KEY)), None, &[], &mut tree.labeller());
    assert_eq!(told(&who), Some(all("two", "/opt/two", "two.service")));
}

#[test]
fn what_is_known_of_a_process_lasts_as_long_as_its_series() {
    let tree = Tree::with("end", 7, 500);
    let (mut labeller, mut who) = (tree.labeller(), Who::new(true));
    who.keep_up(&shown(Some(KEY)), None, &[], &mut labeller);
    fs::remove_dir_all(tree.0.join("proc/7")).unwrap();
    who.keep_up(&shown(None), None, &[], &mut labeller);
    assert_eq!(told(&who), Some(all("", "/opt/one", "one.service")));
    who.keep_up(&[], None, &[], &mut labeller);
    assert_eq!(told(&who), None);
    // Of one that was gone before anybody looked there is nothing to keep.
    who.keep_up(&shown(None), None, &[], &mut labeller);
    assert_eq!(told(&who), None);
}

#[test]
fn a_process_that_has_the_pid_of_another_is_looked_at_anew() {
    let tree = Tree::with("reuse", 7, 500);
    let (mut labeller, mut who) = (tree.labeller(), Who::new(true));
    who.keep_up(&shown(Some(KEY)), Some(&list(b"x", KEY)), &[], &mut labeller);
    let newer = ProcessKey { start_ns: 9_000_000_000, ..KEY };
    who.keep_up(&shown(Some(newer)), Some(&list(b"x", newer)), &[], &mut labeller);
    // /proc still has the older one: it tells nothing of this.
    assert_eq!(told(&who), Some(all("x", "", "")));
}

#[test]
fn where_series_are_groups_nobody_is_looked_at() {
    let tree = Tree::with("groups", 7, 500);
    let mut who = Who::new(false);
    assert_eq!(who.rights(Rights::PROCESSES), Rights::NONE);
    who.keep_up(&shown(Some(KEY)), None, &[], &mut tree.labeller());
    assert_eq!(told(&who), None);
    assert_eq!(Who::new(true).rights(Rights::PROCESSES), Rights::PROCESSES);
}
