//! Whose each MR is, by who made it, its PD and its context. Pure; who a thread belongs to is asked
//! of whoever knows.

use std::collections::HashMap;

use crate::host::ThreadOf;
use crate::model::{Creator, CtxEntry, MrEntry, MrOwner, OwnedBy, PdEntry};

/// Whose each of a device's MRs is, in their order. `thread` is asked once for each thread.
///
/// Without contexts, where the kernel can't list them, or a PD that its list lacks, nobody is told to
/// be gone.
pub fn owners(
    mrs: &[MrEntry],
    pds: &[PdEntry],
    contexts: &[CtxEntry],
    mut thread: impl FnMut(u32) -> ThreadOf,
) -> Vec<MrOwner> {
    let pds: HashMap<_, _> = pds.iter().map(|pd| (pd.pdn, pd)).collect();
    let contexts: HashMap<_, _> = contexts.iter().map(|it| (it.ctxn, &it.creator)).collect();
    let mut threads = HashMap::new();
    let mut thread = |tid| *threads.entry(tid).or_insert_with(|| thread(tid));
    let owner = |mr: &MrEntry| {
        let pd = mr.pdn.and_then(|pdn| pds.get(&pdn));
        let context = pd.and_then(|pd| pd.ctxn).and_then(|ctxn| contexts.get(&ctxn));
        let way = [
            (OwnedBy::Thread, Some(&mr.creator)),
            (OwnedBy::Pd, pd.map(|pd| &pd.creator)),
            (OwnedBy::Ctx, context.copied()),
        ];
        first_living(way, &mut thread)
    };
    mrs.iter().map(owner).collect()
}

fn first_living(
    way: [(OwnedBy, Option<&Creator>); 3],
    thread: &mut impl FnMut(u32) -> ThreadOf,
) -> MrOwner {
    let mut all_seen = true;
    for (by, creator) in way {
        match creator {
            Some(Creator::Kernel(_)) if by == OwnedBy::Thread => return MrOwner::Kernel,
            Some(Creator::Thread(tid)) => match thread(*tid) {
                ThreadOf::Process(tgid) => return MrOwner::Process { tgid, by },
                ThreadOf::Gone => {}
                ThreadOf::Unknown => all_seen = false,
            },
            Some(Creator::Gone) => {}
            // A user's MR in the kernel's PD, or one whose place is not known.
            Some(Creator::Kernel(_)) | None => all_seen = false,
        }
    }
    if all_seen { MrOwner::Gone } else { MrOwner::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Creator = Creator::Gone;

    fn mr(pdn: Option<u32>, creator: Creator) -> MrEntry {
        let (mrn, length) = (1, Some(4096));
        MrEntry { mrn, pdn, length, rkey: None, lkey: None, odp: None, creator }
    }

    fn pd(pdn: u32, ctxn: Option<u32>, creator: Creator) -> PdEntry {
        PdEntry { pdn, ctxn, users: 1, creator }
    }

    fn ctx(ctxn: u32, creator: Creator) -> CtxEntry {
        CtxEntry { ctxn, creator }
    }

    /// Threads 100 to 199 are of process 100, 200 to 299 of 200; 300 has ended; 400 is hidden.
    fn thread(tid: u32) -> ThreadOf {
        match tid {
            100..=299 => ThreadOf::Process(tid / 100 * 100),
            400 => ThreadOf::Unknown,
            _ => ThreadOf::Gone,
        }
    }

    fn owner(mr: &MrEntry, pds: &[PdEntry], contexts: &[CtxEntry]) -> MrOwner {
        owners(std::slice::from_ref(mr), pds, contexts, thread)[0]
    }

    #[test]
    fn the_first_who_lives_of_the_way_owns_it() {
        let pds = [pd(7, Some(3), Creator::Thread(205)), pd(8, Some(3), GONE)];
        let contexts = [ctx(3, Creator::Thread(100))];
        let of = |pdn, creator| owner(&mr(Some(pdn), creator), &pds, &contexts);
        let process = |tgid, by| MrOwner::Process { tgid, by };
        assert_eq!(of(7, Creator::Thread(150)), process(100, OwnedBy::Thread));
        assert_eq!(of(7, GONE), process(200, OwnedBy::Pd));
        // The thread ended after the dump.
        assert_eq!(of(7, Creator::Thread(300)), process(200, OwnedBy::Pd));
        assert_eq!(of(8, GONE), process(100, OwnedBy::Ctx));
    }

    #[test]
    fn the_kernel_s_own_are_nobody_else_s() {
        let pds = [pd(7, Some(3), Creator::Thread(100))];
        let kernel = Creator::Kernel("ib_core".to_owned());
        assert_eq!(owner(&mr(None, kernel.clone()), &pds, &[]), MrOwner::Kernel);
        assert_eq!(owner(&mr(Some(7), kernel), &pds, &[]), MrOwner::Kernel);
    }

    #[test]
    fn all_ended_is_told_from_not_all_seen() {
        let ended = [pd(7, Some(3), GONE)];
        let gone = mr(Some(7), GONE);
        assert_eq!(owner(&gone, &ended, &[ctx(3, GONE)]), MrOwner::Gone);
        assert_eq!(owner(&gone, &ended, &[ctx(3, Creator::Thread(300))]), MrOwner::Gone);
        // A kernel that lists no contexts, a PD that the dump lacks, an MR without one.
        assert_eq!(owner(&gone, &ended, &[]), MrOwner::Unknown);
        assert_eq!(owner(&gone, &[], &[ctx(3, GONE)]), MrOwner::Unknown);
        assert_eq!(owner(&gone, &[pd(7, None, GONE)], &[ctx(3, GONE)]), MrOwner::Unknown);
        assert_eq!(owner(&mr(None, GONE), &ended, &[ctx(3, GONE)]), MrOwner::Unknown);
    }

    #[test]
    fn who_can_t_be_seen_may_live() {
        let contexts = [ctx(3, GONE)];
        let hidden = mr(Some(7), Creator::Thread(400));
        assert_eq!(owner(&hidden, &[pd(7, Some(3), GONE)], &contexts), MrOwner::Unknown);
        let living = [pd(7, Some(3), Creator::Thread(100))];
        let found = MrOwner::Process { tgid: 100, by: OwnedBy::Pd };
        assert_eq!(owner(&hidden, &living, &contexts), found);
    }

    #[test]
    fn each_thread_is_asked_for_once_and_each_mr_has_its_owner() {
        let mrs: Vec<_> =
            [205, 100, 205, 205, 300].map(|tid| mr(Some(7), Creator::Thread(tid))).into();
        let mut asked = Vec::new();
        let owners = owners(&mrs, &[pd(7, None, Creator::Thread(100))], &[], |tid| {
            asked.push(tid);
            thread(tid)
        });
        let process = |tgid, by| MrOwner::Process { tgid, by };
        let [own, other] = [200, 100].map(|tgid| process(tgid, OwnedBy::Thread));
        assert_eq!(owners, [own, other, own, own, process(100, OwnedBy::Pd)]);
        assert_eq!(asked, [205, 100, 300]);
    }
}
