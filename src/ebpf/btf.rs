//! Offsets of fields in module types, from /sys/kernel/btf read in user space: the programs name
//! no such type. libbpf-rs can't parse a module's BTF, so this calls libbpf itself.
#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::host::Host;

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
/// Structs within structs that are followed; the kernel's nest less deep.
const MAX_DEPTH: u32 = 8;

/// A parsed BTF; a module's keeps its base.
pub struct Btf {
    raw: NonNull<libbpf_sys::btf>,
    _base: Option<Rc<Btf>>,
}

impl Drop for Btf {
    fn drop(&mut self) {
        // SAFETY: made by btf__parse_split, freed once; the base is dropped after it.
        unsafe { libbpf_sys::btf__free(self.raw.as_ptr()) }
    }
}

/// The types that a host tells; those of the kernel, which all others need, are parsed once.
pub struct Types {
    folder: PathBuf,
    kernel: OnceCell<Option<Rc<Btf>>>,
}

impl Types {
    #[must_use]
    pub fn of(host: &Host) -> Self {
        Self { folder: host.sys("kernel/btf"), kernel: OnceCell::new() }
    }

    /// The types of the kernel itself; None where it does not tell them.
    #[must_use]
    pub fn kernel(&self) -> Option<&Rc<Btf>> {
        let parse = || {
            let path = self.folder.join("vmlinux");
            if path.exists() { parse(&path, None).map(Rc::new) } else { None }
        };
        self.kernel.get_or_init(parse).as_ref()
    }

    /// Byte offset of each `(struct, field)`; None for one that no module's BTF has.
    ///
    /// Looks in ib_core and ib_uverbs: types sit in the BTF of the module that first used them.
    #[must_use]
    pub fn field_offsets<const N: usize>(&self, fields: [(&str, &str); N]) -> [Option<u32>; N] {
        let mut offsets = [None; N];
        for module in ["ib_core", "ib_uverbs"] {
            if offsets.iter().all(Option::is_some) {
                continue;
            }
            let Some(btf) = self.module(module) else {
                continue;
            };
            for (offset, (record, field)) in offsets.iter_mut().zip(fields) {
                *offset = offset.or_else(|| btf.field_offset(record, field));
            }
        }
        offsets
    }

    fn module(&self, name: &str) -> Option<Btf> {
        let path = self.folder.join(name);
        // The kernel's types are not parsed for one that is not there.
        if path.exists() { parse(&path, Some(self.kernel()?.clone())) } else { None }
    }
}

fn parse(path: &Path, base: Option<Rc<Btf>>) -> Option<Btf> {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    let base_raw = base.as_ref().map_or(std::ptr::null_mut(), |b| b.raw.as_ptr());
    // SAFETY: the path ends in NUL; the base is null or a live BTF that this one will own.
    let raw = unsafe { libbpf_sys::btf__parse_split(path.as_ptr(), base_raw) };
    NonNull::new(raw).map(|raw| Btf { raw, _base: base })
}

impl Btf {
    /// Byte offset of a field.
    #[must_use]
    pub fn field_offset(&self, record: &str, field: &str) -> Option<u32> {
        self.member_offset(self.find(record, KIND_STRUCT)?, field, MAX_DEPTH)
    }

    /// Bytes of a struct.
    #[must_use]
    pub fn bytes(&self, record: &str) -> Option<u32> {
        let id = self.find(record, KIND_STRUCT)?;
        // SAFETY: a live BTF; libbpf returns an error for what has no size.
        let bytes = unsafe { libbpf_sys::btf__resolve_size(self.raw.as_ptr(), id) };
        u32::try_from(bytes).ok()
    }

    /// The number of an enum's word.
    #[must_use]
    pub fn enum_value(&self, name: &str, word: &str) -> Option<u32> {
        let id = self.find(name, KIND_ENUM)?;
        // SAFETY: a live BTF; libbpf returns null for an id that it does not have.
        let start = unsafe { libbpf_sys::btf__type_by_id(self.raw.as_ptr(), id) };
        // SAFETY: not null, it points to a type of this BTF.
        let count = unsafe { start.as_ref() }?.info & 0xffff;
        let first = start.wrapping_add(1).cast::<libbpf_sys::btf_enum>();
        // SAFETY: an enum's words follow its header in the BTF that libbpf has checked.
        let words = unsafe { std::slice::from_raw_parts(first, count as usize) };
        let found = words.iter().find(|one| self.name(one.name_off) == word)?;
        u32::try_from(found.val).ok()
    }

    fn find(&self, name: &str, kind: u32) -> Option<u32> {
        let name = CString::new(name).ok()?;
        // SAFETY: a live BTF and a name that ends in NUL.
        let id =
            unsafe { libbpf_sys::btf__find_by_name_kind(self.raw.as_ptr(), name.as_ptr(), kind) };
        u32::try_from(id).ok()
    }

    /// Offset of `field` in struct `id`, in its anonymous members too.
    fn member_offset(&self, id: u32, field: &str, depth: u32) -> Option<u32> {
        // SAFETY: a live BTF; libbpf returns null for an id that it does not have.
        let start = unsafe { libbpf_sys::btf__type_by_id(self.raw.as_ptr(), id) };
        // SAFETY: not null, it points to a type of this BTF.
        let record = unsafe { start.as_ref() }?;
        let kind = (record.info >> 24) & 0x1f;
        if depth == 0 || !matches!(kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        let bitfields = record.info >> 31 == 1;
        let count = (record.info & 0xffff) as usize;
        let first = start.wrapping_add(1).cast::<libbpf_sys::btf_member>();
        // SAFETY: a struct's members follow its header in the BTF that libbpf has checked.
        let members = unsafe { std::slice::from_raw_parts(first, count) };
        members.iter().find_map(|member| {
            let bits = if bitfields { member.offset & 0x00ff_ffff } else { member.offset };
            match self.name(member.name_off) {
                "" => self.member_offset(member.type_, field, depth - 1).map(|at| at + bits / 8),
                name if name == field => Some(bits / 8),
                _ => None,
            }
        })
    }

    fn name(&self, offset: u32) -> &str {
        // SAFETY: libbpf returns null or a string that lives as long as the BTF.
        unsafe {
            let name = libbpf_sys::btf__name_by_offset(self.raw.as_ptr(), offset);
            if name.is_null() { "" } else { CStr::from_ptr(name).to_str().unwrap_or("") }
        }
    }
}
