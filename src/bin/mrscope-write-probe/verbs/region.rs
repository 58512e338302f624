//! A protection domain, and memory that is registered in it.

use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rdma_sys::{
    __ibv_reg_mr, ibv_access_flags, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_mr, ibv_pd,
};

use super::{Context, done};
use crate::failure::ProbeError;
use crate::guard;
use crate::memory::{Buffer, last_errno};

/// A protection domain.
#[derive(Debug)]
pub struct Domain {
    raw: NonNull<ibv_pd>,
    context: Rc<Context>,
}

impl Domain {
    pub fn new(context: &Rc<Context>) -> Result<Rc<Self>, ProbeError> {
        guard::at("ibv_alloc_pd");
        // SAFETY: the context is open.
        match NonNull::new(unsafe { ibv_alloc_pd(context.raw()) }) {
            Some(raw) => Ok(Rc::new(Self { raw, context: Rc::clone(context) })),
            None => Err(ProbeError::AllocPd(last_errno())),
        }
    }

    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever was made of it held it, so is gone.
        let _ = unsafe { ibv_dealloc_pd(self.raw()) };
    }
}

/// A buffer that is registered, to be read and written by the device.
#[derive(Debug)]
pub struct Region<'a> {
    /// None once it is deregistered.
    raw: Option<NonNull<ibv_mr>>,
    buffer: &'a Buffer,
    _domain: Rc<Domain>,
    pub lkey: u32,
    pub rkey: u32,
    /// Of the call that registered it.
    pub took: Duration,
}

impl<'a> Region<'a> {
    pub fn register(domain: &Rc<Domain>, buffer: &'a Buffer) -> Result<Self, ProbeError> {
        guard::at("ibv_reg_mr");
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let begun = Instant::now();
        // SAFETY: the buffer is mapped and outlives the MR, which borrows it.
        let raw =
            unsafe { __ibv_reg_mr(domain.raw(), buffer.start().cast(), buffer.bytes(), access, 1) };
        let took = begun.elapsed();
        let Some(raw) = NonNull::new(raw) else {
            let errno = last_errno();
            return Err(ProbeError::RegMr { bytes: buffer.bytes() as u64, errno });
        };
        // SAFETY: an MR that was just made.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(Self { raw: Some(raw), buffer, _domain: Rc::clone(domain), lkey, rkey, took })
    }

    pub fn buffer(&self) -> &Buffer {
        self.buffer
    }

    /// Deregisters it; how long that took.
    pub fn deregister(mut self) -> Result<Duration, ProbeError> {
        guard::at("ibv_dereg_mr");
        let begun = Instant::now();
        self.give_back()?;
        Ok(begun.elapsed())
    }

    fn give_back(&mut self) -> Result<(), ProbeError> {
        match self.raw.take() {
            // SAFETY: it is taken, so nobody deregisters it again.
            Some(raw) => done(unsafe { ibv_dereg_mr(raw.as_ptr()) }).map_err(ProbeError::DeregMr),
            None => Ok(()),
        }
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}
