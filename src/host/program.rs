//! Which program a process runs.

use std::io::ErrorKind;

use super::Host;

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
    const REMOVED: &str = " (deleted)";
    match std::fs::read_link(host.proc(format!("{tgid}/exe"))) {
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
    fn a_program_whose_file_was_replaced_is_the_same() {
        let root = std::env::temp_dir().join(format!("mrscope-program-{}", std::process::id()));
        std::fs::create_dir_all(root.join("proc/7")).unwrap();
        symlink("/opt/train (deleted)", root.join("proc/7/exe")).unwrap();
        let told = program_of(&Host::at(&root), 7);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(told, Program::Path("/opt/train".to_owned()));
    }
}
