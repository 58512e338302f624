//! Whether the kernel keeps its memory from root, too.

use super::Host;

/// True where lockdown is `confidentiality`; false where no securityfs tells.
#[must_use]
pub fn confidential(host: &Host) -> bool {
    host.sys_text("kernel/security/lockdown").is_ok_and(|text| in_force(&text))
}

/// All levels, the one in force in brackets.
fn in_force(text: &str) -> bool {
    text.split_whitespace().any(|level| level == "[confidentiality]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_level_in_brackets_is_in_force() {
        assert!(in_force("none integrity [confidentiality]\n"));
        assert!(!in_force("none [integrity] confidentiality\n"));
        assert!(!in_force(""));
    }
}
