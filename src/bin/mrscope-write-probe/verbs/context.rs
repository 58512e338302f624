//! An open device and its ports.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::rc::Rc;

use rdma_sys::{
    ___ibv_query_port, ibv_close_device, ibv_context, ibv_device, ibv_device_attr,
    ibv_free_device_list, ibv_get_device_list, ibv_get_device_name, ibv_open_device, ibv_port_attr,
    ibv_port_state, ibv_query_device,
};

use super::done;
use crate::failure::ProbeError;
use crate::guard;
use crate::memory::last_errno;

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ibv_context>,
}

/// What a port says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    pub active: bool,
    pub state: u32,
    pub lid: u16,
    /// The code of the MTU that is in use.
    pub mtu: u32,
    pub max_message_bytes: u32,
    /// Codes of a lane's speed and of the number of lanes.
    pub speed: u8,
    pub width: u8,
    pub needs_grh: bool,
}

/// How many MRs a device can have, and how long one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrLimits {
    pub max_mr: u64,
    pub max_mr_size: u64,
}

impl Port {
    /// 256 to 4096.
    pub fn mtu_bytes(&self) -> u64 {
        128 << self.mtu.min(16)
    }
}

/// The list of devices, which an open one may outlive.
struct Devices {
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl Devices {
    fn get() -> Result<Self, ProbeError> {
        guard::at("ibv_get_device_list");
        let mut count = 0;
        // SAFETY: the count is written during the call.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(Self { list, count: count.unsigned_abs() as usize }),
            None => Err(ProbeError::GetDeviceList(last_errno())),
        }
    }

    fn named(&self) -> impl Iterator<Item = (String, *mut ibv_device)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has that many devices, each with a name that ends with NUL.
            let (device, name) = unsafe {
                let device = *self.list.as_ptr().add(index);
                (device, CStr::from_ptr(ibv_get_device_name(device)))
            };
            (name.to_string_lossy().into_owned(), device)
        })
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: it was had from ibv_get_device_list, and nothing else frees it.
        unsafe { ibv_free_device_list(self.list.as_ptr()) }
    }
}

impl Context {
    /// Opens the device of that name.
    pub fn open(name: &str) -> Result<Rc<Self>, ProbeError> {
        let devices = Devices::get()?;
        let Some((_, device)) = devices.named().find(|(known, _)| known == name) else {
            let known = devices.named().map(|(known, _)| known).collect();
            return Err(ProbeError::NoDevice { known });
        };
        guard::at("ibv_open_device");
        // SAFETY: the device is of the list, which lives.
        let raw = unsafe { ibv_open_device(device) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Rc::new(Self { raw })),
            None => Err(ProbeError::OpenDevice(last_errno())),
        }
    }

    pub(super) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// What the device says of MRs; None where it says nothing, which stops no run.
    pub fn limits(&self) -> Option<MrLimits> {
        guard::at("ibv_query_device");
        // SAFETY: all of its fields are numbers or arrays of them, for which zero is one.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the attributes are written during the call.
        let code = unsafe { ibv_query_device(self.raw(), &raw mut attributes) };
        done(code).ok()?;
        Some(MrLimits {
            max_mr: u64::try_from(attributes.max_mr).ok()?,
            max_mr_size: attributes.max_mr_size,
        })
    }

    /// What the port says now.
    pub fn port(&self, number: u8) -> Result<Port, ProbeError> {
        guard::at("ibv_query_port");
        // SAFETY: all of its fields are numbers, for which zero is one.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the attributes are written during the call.
        let code = unsafe { ___ibv_query_port(self.raw(), number, &raw mut attributes) };
        done(code).map_err(ProbeError::QueryPort)?;
        Ok(Port {
            active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            state: attributes.state,
            lid: attributes.lid,
            mtu: attributes.active_mtu,
            max_message_bytes: attributes.max_msg_sz,
            speed: attributes.active_speed,
            width: attributes.active_width,
            // IBV_QPF_GRH_REQUIRED
            needs_grh: attributes.flags & 1 != 0,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever was made of it held it, so is gone.
        let _ = unsafe { ibv_close_device(self.raw()) };
    }
}
