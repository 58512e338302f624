//! Names of devices where no BTF says where ib_device keeps them: looked for once, in a copy of a
//! device's first bytes, by the names that /sys/class/infiniband has.

/// Where the name of a device is in a sample of it.
///
/// None if no name is found whole with its NUL, or at more than one place.
#[must_use]
pub fn find_name_offset(sample: &[u8], names: &[String]) -> Option<u32> {
    let mut found = None;
    for name in names.iter().filter(|name| !name.is_empty()) {
        let mut wanted = name.as_bytes().to_vec();
        wanted.push(0);
        for (offset, window) in sample.windows(wanted.len()).enumerate() {
            if window == wanted && offset % 8 == 0 {
                if found.is_some_and(|at| at != offset) {
                    return None;
                }
                found = Some(offset);
            }
        }
    }
    found.and_then(|offset| u32::try_from(offset).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: usize, name: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xaa; 2048];
        bytes[at..at + name.len()].copy_from_slice(name);
        bytes
    }

    #[test]
    fn a_name_is_found_whole_and_aligned() {
        let names = ["mlx5_1".to_owned(), "mlx5_10".to_owned()];
        assert_eq!(find_name_offset(&sample(1000, b"mlx5_10\0"), &names), Some(1000));
        assert_eq!(find_name_offset(&sample(1001, b"mlx5_1\0"), &names), None);
        assert_eq!(find_name_offset(&sample(1000, b"mlx5_12\0"), &names), None);
    }

    #[test]
    fn a_name_at_two_places_is_not_trusted() {
        let mut bytes = sample(1000, b"rxe0\0");
        bytes[64..69].copy_from_slice(b"rxe0\0");
        assert_eq!(find_name_offset(&bytes, &["rxe0".to_owned()]), None);
    }
}
