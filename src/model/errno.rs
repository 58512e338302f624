//! Errors of the kernel by their usual names.

/// The usual name of an errno, or its number.
#[must_use]
pub fn errno_name(error: u32) -> String {
    const NAMES: [(u32, &str); 29] = [
        (1, "EPERM"),
        (2, "ENOENT"),
        (4, "EINTR"),
        (5, "EIO"),
        (7, "E2BIG"),
        (6, "ENXIO"),
        (9, "EBADF"),
        (11, "EAGAIN"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (14, "EFAULT"),
        (16, "EBUSY"),
        (17, "EEXIST"),
        (19, "ENODEV"),
        (22, "EINVAL"),
        (28, "ENOSPC"),
        (32, "EPIPE"),
        (34, "ERANGE"),
        (38, "ENOSYS"),
        (62, "ETIME"),
        (71, "EPROTO"),
        (75, "EOVERFLOW"),
        (93, "EPROTONOSUPPORT"),
        (95, "EOPNOTSUPP"),
        (100, "ENETDOWN"),
        (101, "ENETUNREACH"),
        (110, "ETIMEDOUT"),
        (113, "EHOSTUNREACH"),
        (512, "ERESTARTSYS"),
    ];
    NAMES
        .iter()
        .find(|(number, _)| *number == error)
        .map_or_else(|| error.to_string(), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_name_or_its_number() {
        assert_eq!((errno_name(12).as_str(), errno_name(4000).as_str()), ("ENOMEM", "4000"));
    }
}
