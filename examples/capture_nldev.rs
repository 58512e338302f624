//! Writes what RDMA netlink answers, for tests to read again: capture_nldev FOLDER, in a guest. A
//! file for each question; each datagram is there as it came, behind its length of 32 bits.

use std::error::Error;
use std::path::Path;

use mrscope::host::Host;
use mrscope::nldev::{Budget, Command, Netlink, Question};

const TABLES: [(&str, Command); 5] = [
    ("mr", Command::MemoryRegions),
    ("pd", Command::ProtectionDomains),
    ("ctx", Command::Contexts),
    ("cq", Command::CompletionQueues),
    ("qp", Command::QueuePairs),
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: capture_nldev FOLDER")?;
    let mut netlink = Netlink::open(&Host::live())?.ok_or("this kernel has no RDMA")?;
    let device = netlink.devices(&Budget::default())?.entries.pop().ok_or("no device")?.index;
    let all = |command| Question { command, device: None, mrn: None };
    let mut questions =
        vec![("dev", all(Command::Devices)), ("resources", all(Command::Resources))];
    questions.extend(
        TABLES.map(|(name, command)| (name, Question { command, device: Some(device), mrn: None })),
    );
    for (name, question) in questions {
        match netlink.datagrams(question) {
            Ok(datagrams) => write(&Path::new(&folder).join(name), &datagrams)?,
            Err(error) => println!("{name}: {error}"),
        }
    }
    Ok(())
}

fn write(path: &Path, datagrams: &[Vec<u8>]) -> std::io::Result<()> {
    let framed =
        |datagram: &Vec<u8>| [&(datagram.len() as u32).to_le_bytes(), &datagram[..]].concat();
    std::fs::write(path, datagrams.iter().flat_map(framed).collect::<Vec<u8>>())
}
