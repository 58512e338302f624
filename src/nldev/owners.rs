//! Whose each MR is, by who made it, its PD and its context. Pure; who a thread belongs to is asked
//! of whoever knows.

use std::collections::HashMap;

use crate::host::ThreadOf;
use crate::model::{Creator, CtxEntry, MrEntry, MrOwner, OwnedBy, PdEntry};

/// PDs and contexts of one device.
#[derive(Debug, Default)]
pub struct Owners<'a> {
    pds: HashMap<u32, &'a PdEntry>,
    contexts: HashMap<u32, &'a CtxEntry>,
}

impl<'a> Owners<'a> {
    /// Without contexts where the kernel can't list them.
    #[must_use]
    pub fn of(pds: &'a [PdEntry], contexts: &'a [CtxEntry]) -> Self {
        Self {
            pds: pds.iter().map(|pd| (pd.pdn, pd)).collect(),
            contexts: contexts.iter().map(|context| (context.ctxn, context)).collect(),
        }
    }

    /// Whose it is.
    pub fn owner_of(&self, mr: &MrEntry, mut thread: impl FnMut(u32) -> ThreadOf) -> MrOwner {
        if let Creator::Kernel(_) = mr.creator {
            return MrOwner::Kernel;
        }
        let pd = mr.pdn.and_then(|pdn| self.pds.get(&pdn));
        let context = pd.and_then(|pd| pd.ctxn).and_then(|ctxn| self.contexts.get(&ctxn));
        let way = [
            (OwnedBy::Thread, Some(&mr.creator)),
            (OwnedBy::Pd, pd.map(|pd| &pd.creator)),
            (OwnedBy::Ctx, context.map(|context| &context.creator)),
        ];
        let mut all_seen = true;
        for (by, creator) in way {
            match creator {
                Some(Creator::Thread(tid)) => match thread(*tid) {
                    ThreadOf::Process(tgid) => return MrOwner::Process { tgid, by },
                    ThreadOf::Gone => {}
                    ThreadOf::Unknown => all_seen = false,
                },
                Some(Creator::Gone) => {}
                // A user's MR in the kernel's PD: nobody to be found there.
                Some(Creator::Kernel(_)) | None => all_seen = false,
            }
        }
        if all_seen { MrOwner::Gone } else { MrOwner::Unknown }
    }
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
        Owners::of(pds, contexts).owner_of(mr, thread)
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
}
