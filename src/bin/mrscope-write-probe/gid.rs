//! Which GID of a RoCE port a write is addressed to.

use std::net::Ipv6Addr;

/// One row of a port's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    pub index: u8,
    pub address: Ipv6Addr,
    /// The kernel's words, as in `RoCE v2`.
    pub kind: String,
}

const V2: &str = "RoCE v2";

impl Gid {
    /// Lower is better: RoCE v2 before v1, then what routers forward before what they don't, then
    /// the first.
    fn rank(&self) -> (bool, bool, u8) {
        (self.kind != V2, is_link_local(self.address), self.index)
    }
}

fn is_link_local(address: Ipv6Addr) -> bool {
    match address.to_ipv4_mapped() {
        Some(v4) => v4.is_link_local(),
        None => address.is_unicast_link_local(),
    }
}

/// The GID at that index, or the best.
pub fn choose(gids: &[Gid], wanted: Option<u8>) -> Option<&Gid> {
    match wanted {
        Some(index) => gids.iter().find(|gid| gid.index == index),
        None => gids.iter().min_by_key(|gid| gid.rank()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: &str) -> Gid {
        Gid { index, address: address.parse().unwrap(), kind: kind.to_owned() }
    }

    fn chosen(gids: &[Gid]) -> Option<u8> {
        choose(gids, None).map(|gid| gid.index)
    }

    #[test]
    fn v2_is_before_v1_and_routable_before_link_local() {
        let v1 = "IB/RoCE v1";
        let all = [
            gid(0, "fe80::1", v1),
            gid(1, "fe80::1", V2),
            gid(2, "::ffff:10.0.0.1", v1),
            gid(3, "::ffff:10.0.0.1", V2),
            gid(4, "fd00::1", V2),
        ];
        assert_eq!(chosen(&all), Some(3));
        assert_eq!(chosen(&all[..3]), Some(1));
        assert_eq!(chosen(&[all[0].clone(), all[2].clone()]), Some(2));
        assert_eq!(chosen(&all[..1]), Some(0));
        assert_eq!(chosen(&[]), None);
    }

    #[test]
    fn a_link_local_address_of_version_4_is_one() {
        let all = [gid(0, "::ffff:169.254.3.4", V2), gid(1, "::ffff:192.168.3.4", V2)];
        assert_eq!(chosen(&all), Some(1));
    }

    #[test]
    fn an_index_that_is_asked_for_is_taken_or_none() {
        let all = [gid(0, "fe80::1", V2), gid(3, "::ffff:10.0.0.1", V2)];
        assert_eq!(choose(&all, Some(0)), Some(&all[0]));
        assert_eq!(choose(&all, Some(1)), None);
    }
}
