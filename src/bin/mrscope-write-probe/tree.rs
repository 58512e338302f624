//! For tests: a made-up host below the folder for temporary files.

use std::path::PathBuf;

/// Gone when it is dropped.
pub struct Tree(pub PathBuf);

impl Tree {
    pub fn new(name: &str) -> Self {
        let id = std::process::id();
        let at = std::env::temp_dir().join(format!("mrscope-write-probe-{name}-{id}"));
        let _ = std::fs::remove_dir_all(&at);
        Self(at)
    }

    pub fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
