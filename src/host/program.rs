//! Which program a process runs.

use std::io::ErrorKind;

use super::Host;

/// Threads that are asked where the leader has ended; others end meanwhile, or all run.
const MOST_THREADS: usize = 64;

/// What /proc tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// Its path, as the process's own mount namespace has it.
    Path(String),
    /// It takes CAP_SYS_PTRACE to know, or a security module keeps it.
    Denied,
    /// There is none, or not any more.
    Unknown,
}

/// The program of a process. That its file was removed or replaced since is not told: an upgrade
/// makes no other program of it.
#[must_use]
pub fn program_of(host: &Host, tgid: u32) -> Program {
    let of_leader = linked(host, &format!("{tgid}/exe"));
    if of_leader != Program::Unknown {
        return of_leader;
    }
    // Of a leader that has ended nothing is told, while other threads run the program.
    let tasks = std::fs::read_dir(host.proc(format!("{tgid}/task")));
    let tasks = tasks.into_iter().flatten().filter_map(Result::ok).take(MOST_THREADS);
    tasks
        .map(|task| linked(host, &format!("{tgid}/task/{}/exe", task.file_name().display())))
        .find(|told| *told != Program::Unknown)
        .unwrap_or(Program::Unknown)
}

fn linked(host: &Host, link: &str) -> Program {
    const REMOVED: &str = " (deleted)";
    match std::fs::read_link(host.proc(link)) {
        Ok(path) => {
            let path = path.to_string_lossy();
            Program::Path(path.strip_suffix(REMOVED).unwrap_or(&path).to_owned())
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Program::Denied,
        Err(_) => Program::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn this_test_runs_its_own_program() {
        let own = std::env::current_exe().unwrap().to_string_lossy().into_owned();
        let told = program_of(&Host::live(), std::process::id());
        assert_eq!(told, Program::Path(own));
        // One that has ended has none.
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(program_of(&Host::live(), child.id()), Program::Unknown);
    }

    #[test]
    fn of_a_process_whose_leader_has_ended_another_thread_tells() {
        let root = std::env::temp_dir().join(format!("mrscope-leader-{}", std::process::id()));
        for thread in ["7", "9"] {
            std::fs::create_dir_all(root.join("proc/7/task").join(thread)).unwrap();
        }
        symlink("/opt/train", root.join("proc/7/task/9/exe")).unwrap();
        let told = program_of(&Host::at(&root), 7);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(told, Program::Path("/opt/train".to_owned()));
    }

    #[test]
    fn a_program_whose_file_was_replaced_is_the_same() {
        let root = std::env::temp_dir().join(format!("mrscope-program-{}", std::process::id()));
        std::fs::create_dir_all(root.join("proc/7")).unwrap();
        symlink("/opt/train (deleted)", root.join("proc/7/exe")).unwrap();
        let told = program_of(&Host::at(&root), 7);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(told, Program::Path("/opt/train".to_owned()));
    }
}
