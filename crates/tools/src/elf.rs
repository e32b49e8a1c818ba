//! What an ELF file says about itself, as far as it decides whether a preloaded library can serve
//! it.
//!
//! Reads headers only, however large the file is, and trusts none of them: a damaged file is an
//! error.

use object::elf::{ELFMAG, ET_DYN, ET_EXEC, FileHeader32, FileHeader64};
use object::elf::{PT_DYNAMIC, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader as _};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, FileKind};
use std::fs::File;
use std::io;

/// The facts about one ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// Machine, class and byte order.
    pub target: Target,
    /// Its dynamic loader; none: statically linked, or a loader itself.
    pub interpreter: Option<String>,
    /// Whether it has a dynamic section.
    pub dynamic: bool,
    /// Whether the Go tool chain made it.
    pub go: bool,
    /// Whether it is a program or a shared library, as opposed to an object file or a core.
    pub runs: bool,
    /// How long the file has to be for all of its segments to be in it.
    pub needs: u64,
}

/// What a library and a program must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// `e_machine`.
    pub machine: u16,
    /// 32 or 64.
    pub bits: u8,
    /// Byte order.
    pub big_endian: bool,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use object::elf::*;
        let machine = match self.machine {
            EM_386 => "i386",
            EM_X86_64 if self.bits == 32 => "x32",
            EM_X86_64 => "x86-64",
            EM_ARM => "ARM",
            EM_AARCH64 => "AArch64",
            EM_RISCV => "RISC-V",
            EM_PPC64 => "POWER",
            EM_S390 => "s390",
            EM_LOONGARCH => "LoongArch",
            EM_MIPS => "MIPS",
            other => return write!(f, "machine {other}, {} bit", self.bits),
        };
        write!(f, "{machine}, {} bit", self.bits)
    }
}

impl Elf {
    /// Reads a file; `None` when it does not even begin as ELF.
    pub fn read(file: File) -> io::Result<Option<Elf>> {
        let cache = ReadCache::new(file);
        if (&cache).read_bytes_at(0, ELFMAG.len() as u64) != Ok(&ELFMAG[..]) {
            return Ok(None);
        }
        let damaged = |error: object::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        match FileKind::parse(&cache) {
            Ok(FileKind::Elf64) => FileHeader64::<Endianness>::parse(&cache)
                .and_then(|header| Elf::from_header(header, &cache))
                .map(Some)
                .map_err(damaged),
            Ok(FileKind::Elf32) => FileHeader32::<Endianness>::parse(&cache)
                .and_then(|header| Elf::from_header(header, &cache))
                .map(Some)
                .map_err(damaged),
            Ok(_) => Err(io::Error::from(io::ErrorKind::InvalidData)),
            Err(error) => Err(damaged(error)),
        }
    }

    fn from_header<'data, R, H>(header: &H, data: R) -> object::Result<Elf>
    where
        R: ReadRef<'data>,
        H: FileHeader<Endian = Endianness>,
    {
        let endian = header.endian()?;
        let mut elf = Elf {
            target: Target {
                machine: header.e_machine(endian),
                bits: if header.is_class_64() { 64 } else { 32 },
                big_endian: header.is_big_endian(),
            },
            interpreter: None,
            dynamic: false,
            go: false,
            runs: matches!(header.e_type(endian), ET_EXEC | ET_DYN),
            needs: 0,
        };
        for segment in header.program_headers(endian, data)? {
            if let Some(path) = segment.interpreter(endian, data)? {
                elf.interpreter = Some(String::from_utf8_lossy(path).into_owned());
            }
            elf.dynamic |= segment.p_type(endian) == PT_DYNAMIC;
            if segment.p_type(endian) == PT_LOAD {
                let (at, size) = segment.file_range(endian);
                elf.needs = elf.needs.max(at.saturating_add(size));
            }
            // Present in stripped programs too.
            if segment.p_type(endian) == PT_NOTE {
                elf.go |= has_go_note::<R, H>(segment, endian, data).unwrap_or(false);
            }
        }
        // A program may lack sections; that is no error.
        if let Ok(sections) = header.sections(endian, data) {
            for name in [".go.buildinfo", ".note.go.buildid"] {
                elf.go |= sections.section_by_name(endian, name.as_bytes()).is_some();
            }
        }
        Ok(elf)
    }
}

fn has_go_note<'data, R, H>(
    segment: &H::ProgramHeader,
    endian: Endianness,
    data: R,
) -> object::Result<bool>
where
    R: ReadRef<'data>,
    H: FileHeader<Endian = Endianness>,
{
    const NOTES_MAX: usize = 64;
    let Some(mut notes) = segment.notes(endian, data)? else {
        return Ok(false);
    };
    for _ in 0..NOTES_MAX {
        match notes.next()? {
            Some(note) if note.name() == b"Go" => return Ok(true),
            Some(_) => {}
            None => break,
        }
    }
    Ok(false)
}
