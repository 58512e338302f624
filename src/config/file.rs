//! The YAML file: which keys there are and what each is read into. Only this room names serde.
//! A wrong key or value is an error with its line; nothing is guessed and nothing passed over.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};

use crate::model::COLLECTORS;

use super::notation::{self, Expected, Notation, range_words};
use super::web::{listen_address, telemetry_path};
use super::{COUNTED, Config, ConfigError, MAXACTIVE, PER_CENT, PROBE_BYTES, PROCESSES, ROWS};

/// A key with what its value is read into.
type Key<'a> = (&'static str, Slot<'a>);

/// What a value is read into.
enum Slot<'a> {
    Section(Vec<Key<'a>>),
    Switch(&'a mut bool),
    Whole { range: RangeInclusive<u64>, set: Box<dyn FnMut(u64) + 'a> },
    Text { expected: String, set: Set<'a> },
    List { expected: String, add: Add<'a> },
}

/// Takes a text, or says what should have been there.
type Set<'a> = Box<dyn FnMut(&str) -> Result<(), Expected> + 'a>;

/// Takes a list's texts one by one with their places; the first replaces the default.
type Add<'a> = Box<dyn FnMut(&str, usize) -> Result<(), Expected> + 'a>;

/// Every key of the file.
fn keys(config: &mut Config) -> Vec<Key<'_>> {
    let Config {
        web,
        log,
        path,
        ebpf,
        process,
        mlock,
        tlb,
        write_probe,
        devices,
        resources,
        placement,
        collectors,
    } = config;
    let mut of_mr = vec![whole("history", ROWS, |mrs| ebpf.history = mrs as u32)];
    let mut of_process = vec![
        whole("max", PROCESSES, |max| process.max = usize::try_from(max).unwrap_or(usize::MAX)),
        text("linger", &mut process.linger, notation::duration),
        list("labels", &mut process.labels, notation::label, "each label once"),
    ];
    let mut of_mlock = vec![
        ("per_process", Slot::Switch(&mut mlock.per_process)),
        ("tracepoints", Slot::Switch(&mut mlock.tracepoints)),
    ];
    let mut of_tlb = vec![
        list("events", &mut tlb.events, notation::tlb_event, "each event once"),
        ("per_process", Slot::Switch(&mut tlb.per_process)),
        whole("max_processes", COUNTED, |max| tlb.max_processes = max as usize),
    ];
    let mut keys = vec![
        section(
            "web",
            [
                list(
                    "listen_addresses",
                    &mut web.listen_addresses,
                    listen_address,
                    "each address once",
                ),
                text("telemetry_path", &mut web.telemetry_path, telemetry_path),
            ],
        ),
        section(
            "log",
            [
                text("level", &mut log.level, notation::log_level),
                text("format", &mut log.format, notation::log_format),
            ],
        ),
        section(
            "path",
            [
                text("procfs", &mut path.procfs, notation::absolute_path),
                text("sysfs", &mut path.sysfs, notation::absolute_path),
            ],
        ),
        section(
            "ebpf",
            [
                text("attach", &mut ebpf.attach, notation::attach),
                whole("maxactive", MAXACTIVE, |calls| ebpf.maxactive = calls as u32),
                whole("max_pins", ROWS, |rows| ebpf.max_pins = rows as u32),
                whole("max_processes", ROWS, |rows| ebpf.max_processes = rows as u32),
            ],
        ),
        section("capabilities", [("permanent_drop", Slot::Switch(&mut ebpf.permanent_drop))]),
    ];
    let mut of_write_probe = vec![
        text("interval", &mut write_probe.interval, notation::interval),
        text("timeout", &mut write_probe.timeout, notation::interval),
        list("page_sizes", &mut write_probe.page_sizes, notation::page_size, "each size once"),
        whole("max_bytes", PROBE_BYTES, |bytes| write_probe.max_bytes = bytes),
        list("exclude", &mut write_probe.exclude.0, notation::pattern, "each pattern once"),
        whole("max_port_share", PER_CENT, |share| write_probe.max_port_share = share),
        text("program", &mut write_probe.program, notation::program),
    ];
    let mut of_devices =
        vec![list("exclude", &mut devices.exclude.0, notation::pattern, "each pattern once")];
    let mut of_resources = vec![text("interval", &mut resources.interval, notation::interval)];
    let mut of_placement = vec![
        text("interval", &mut placement.interval, notation::interval),
        ("pages", Slot::Switch(&mut placement.pages)),
    ];
    for (collector, on) in COLLECTORS.into_iter().zip(collectors) {
        let mut own = vec![("enabled", Slot::Switch(on))];
        match collector {
            "mr" => own.append(&mut of_mr),
            "process" => own.append(&mut of_process),
            "mlock" => own.append(&mut of_mlock),
            "tlb" => own.append(&mut of_tlb),
            "write_probe" => own.append(&mut of_write_probe),
            "devices" => own.append(&mut of_devices),
            "resources" => own.append(&mut of_resources),
            "placement" => own.append(&mut of_placement),
            _ => {}
        }
        keys.push((collector, Slot::Section(own)));
    }
    keys
}

fn section<'a, const N: usize>(key: &'static str, keys: [Key<'a>; N]) -> Key<'a> {
    (key, Slot::Section(keys.into()))
}

fn whole<'a>(key: &'static str, range: RangeInclusive<u64>, set: impl FnMut(u64) + 'a) -> Key<'a> {
    (key, Slot::Whole { range, set: Box::new(set) })
}

fn text<'a, T>(key: &'static str, into: &'a mut T, parse: Notation<T>) -> Key<'a> {
    let set = move |text: &str| parse(text).map(|value| *into = value);
    (key, Slot::Text { expected: expected(parse), set: Box::new(set) })
}

fn list<'a, T: PartialEq>(
    key: &'static str,
    into: &'a mut Vec<T>,
    parse: Notation<T>,
    once: &'static str,
) -> Key<'a> {
    let add = move |text: &str, index: usize| {
        let value = parse(text)?;
        into.truncate(index);
        if into.contains(&value) {
            return Err(Expected(once.to_owned()));
        }
        into.push(value);
        Ok(())
    };
    (key, Slot::List { expected: expected(parse), add: Box::new(add) })
}

fn expected<T>(parse: Notation<T>) -> String {
    parse("").err().map(|expected| expected.0).unwrap_or_default()
}

/// Reads the text over the configuration. What it leaves out stays.
pub fn read_over(config: &mut Config, file: &Path, text: &str) -> Result<(), ConfigError> {
    let yaml = || serde_yaml_ng::Deserializer::from_str(text);
    // First its form alone, so that all errors after are about its meaning.
    if let Err(error) = <IgnoredAny as serde::Deserialize>::deserialize(yaml()) {
        let place = error.location().map_or_else(
            || file.display().to_string(),
            |at| format!("{}:{}:{}", file.display(), at.line(), at.column()),
        );
        return Err(ConfigError::Syntax { place, problem: without_place(&error) });
    }
    let mut all = Slot::Section(keys(config));
    Reading { path: "", slot: &mut all }.deserialize(yaml()).map_err(|error| {
        let place = error.location().map_or_else(
            || file.display().to_string(),
            |at| format!("{}:{}", file.display(), at.line()),
        );
        // The parser puts the section's name before what already names its whole key.
        let whole = without_place(&error);
        let of_key = |text: &str| KEY_ERRORS.iter().any(|start| text.starts_with(start));
        let problem = match whole.split_once(": ") {
            Some((_, rest)) if !of_key(&whole) && of_key(rest) => rest.to_owned(),
            _ => whole,
        };
        ConfigError::Refused { place, problem }
    })
}

/// The parser's message, which ends with the place or has it in the middle.
fn without_place(error: &serde_yaml_ng::Error) -> String {
    let message = error.to_string();
    match error.location() {
        Some(at) => {
            message.replacen(&format!(" at line {} column {}", at.line(), at.column()), "", 1)
        }
        None => message,
    }
}

/// How errors about keys begin.
const KEY_ERRORS: [&str; 2] = ["unknown key ", "doubled key "];

/// Reads one value into its slot.
struct Reading<'s, 'a> {
    /// The section with dots, empty for the whole file.
    path: &'s str,
    slot: &'s mut Slot<'a>,
}

impl<'de> DeserializeSeed<'de> for Reading<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.slot {
            // A path that looks like a number is one all the same.
            Slot::Text { .. } => deserializer.deserialize_str(self),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Reading<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.slot {
            Slot::Section(keys) => write!(f, "a section of the keys {}", names(keys).join(", ")),
            Slot::Switch(_) => f.write_str("true or false"),
            Slot::Whole { range, .. } => f.write_str(&range_words(range)),
            Slot::Text { expected, .. } => f.write_str(expected),
            Slot::List { expected, .. } => write!(f, "a list of at least one: {expected}"),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        match self.slot {
            Slot::Section(_) => Ok(()),
            _ => Err(E::invalid_type(Unexpected::Other("nothing"), &self)),
        }
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.slot {
            Slot::Switch(on) => {
                **on = value;
                Ok(())
            }
            _ => Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match self.slot {
            Slot::Whole { range, set } if range.contains(&value) => {
                set(value);
                Ok(())
            }
            Slot::Whole { .. } => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
            _ => Err(E::invalid_type(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        match self.slot {
            Slot::Text { set, .. } => set(value)
                .map_err(|expected| E::invalid_value(Unexpected::Str(value), &expected.0.as_str())),
            _ => Err(E::invalid_type(Unexpected::Str(value), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Slot::List { expected, add } = self.slot else {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        };
        let mut index = 0;
        loop {
            let set = Box::new(|text: &str| add(text, index));
            let mut slot = Slot::Text { expected: expected.clone(), set };
            if list.next_element_seed(Reading { path: self.path, slot: &mut slot })?.is_none() {
                break;
            }
            drop(slot);
            index += 1;
        }
        if index == 0 {
            return Err(A::Error::invalid_length(0, &self));
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Slot::Section(keys) = self.slot else {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        };
        let mut seen = vec![false; keys.len()];
        while let Some(position) =
            map.next_key_seed(KeyIn { path: self.path, keys, seen: &mut seen })?
        {
            let (key, slot) = &mut keys[position];
            map.next_value_seed(Reading { path: key, slot })?;
        }
        Ok(())
    }
}

/// A key of a section: its position, once.
struct KeyIn<'s, 'a> {
    path: &'s str,
    keys: &'s [Key<'a>],
    seen: &'s mut [bool],
}

impl<'de> DeserializeSeed<'de> for KeyIn<'_, '_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<usize, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyIn<'_, '_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of the keys {}", names(self.keys).join(", "))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<usize, E> {
        let dotted =
            if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        let names = names(self.keys);
        let Some(position) = names.iter().position(|name| *name == key) else {
            let near = nearest(key, &names)
                .map(|name| format!("; did you mean {name:?}?"))
                .unwrap_or_default();
            let names = names.join(", ");
            return Err(E::custom(format!(
                "unknown key {dotted:?}, expected one of {names}{near}"
            )));
        };
        if std::mem::replace(&mut self.seen[position], true) {
            return Err(E::custom(format!("doubled key {dotted:?}, expected each key once")));
        }
        Ok(position)
    }
}

fn names(keys: &[Key<'_>]) -> Vec<&'static str> {
    keys.iter().map(|(name, _)| *name).collect()
}

/// The name that a slip of the hand would make of: at most a third of its letters differ.
fn nearest(key: &str, names: &[&'static str]) -> Option<&'static str> {
    names
        .iter()
        .map(|name| (strsim::damerau_levenshtein(key, name), *name))
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .min()
        .map(|(_, name)| name)
}

/// Every key with dots, of the sections' keys.
#[cfg(test)]
pub fn dotted_keys() -> Vec<String> {
    let mut config = Config::default();
    let mut dotted = Vec::new();
    for (section, slot) in keys(&mut config) {
        let Slot::Section(keys) = slot else { unreachable!("{section}") };
        dotted.extend(names(&keys).iter().map(|key| format!("{section}.{key}")));
    }
    dotted
}
