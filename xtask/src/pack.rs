//! Packing compiled kernels: the images of a kernel file to an archive, see
//! `crates/spec-cuda/src/archive/mod.rs`.

mod ptx;
pub(crate) mod reductions;

use std::io::Write;
use std::time::{Duration, Instant};

use lzma_rust2::{LzmaOptions, LzmaWriter};

#[path = "../../crates/spec-cuda/src/archive/mod.rs"]
#[allow(dead_code, unused_macros, unused_imports)]
pub(crate) mod archive;

use archive::elf::Elf;
use archive::{ALIGNMENT, Kind, LARGEST_STREAM, sass};

use crate::Result;

/// The architecture and the kind of an image.
pub(crate) type Target = (u32, Kind);

/// A compiled image.
pub(crate) struct Image {
    pub target: Target,
    pub bytes: Vec<u8>,
}

/// The name of a target for the compiler.
pub(crate) fn target_name((architecture, kind): Target) -> String {
    format!("{}_{architecture}", if kind == Kind::Sass { "sm" } else { "compute" })
}

/// The LZMA options of a stream. Of the variants that were measured over all archives, these give
/// the smallest streams, and decode as fast as LZMA's defaults.
///
/// - An instruction has 16 bytes, each with a meaning of its own. With `lp` and `pb` at 4, the
///   probabilities depend on the place in the instruction: 4 % smaller than the defaults.
/// - PTX is text. Its characters have no alignment (`lp`, `pb` 0), and depend on the one
///   before (`lc` 2): 0.5 % smaller.
/// - The longest matches (`nice_len`): 0.4 % smaller.
/// - The dictionary covers the whole stream, since similar code is an image apart.
fn options(kind: Kind, size: usize) -> LzmaOptions {
    let (lc, lp, pb) = match kind {
        Kind::Sass => (0, 4, 4),
        Kind::Ptx => (2, 0, 0),
    };
    let dict_size = size.max(4096) as u32;
    let nice_len = LzmaOptions::NICE_LEN_MAX;
    LzmaOptions { dict_size, lc, lp, pb, nice_len, ..LzmaOptions::with_preset(9) }
}

/// An image as it lies in a stream.
fn in_stream(image: &Image) -> Result<Vec<u8>> {
    match image.target.1 {
        Kind::Sass => {
            let mut bytes = image.bytes.clone();
            sass::reorder(&mut bytes, |instruction| sass::ORDER.map(|from| instruction[from]));
            let mut unpacked = bytes.clone();
            sass::unpack(&mut unpacked);
            if unpacked != image.bytes {
                return Err("packed machine code does not unpack to the same bytes".to_owned());
            }
            Ok(bytes)
        }
        Kind::Ptx => ptx::pack(&image.bytes),
    }
}

/// A cubin whose call frames are there but say nothing: entries that cover no code, with zeros in
/// the place of their instructions. Zeros take no room in a stream, where the instructions take 2 %
/// of all archives, and only the unwinding of a stack needs them. Every entry keeps its head, since
/// tools that know DWARF walk from entry to entry by the lengths.
pub(crate) fn with_short_frames(cubin: &[u8]) -> Result<Vec<u8>> {
    let elf = Elf::new(cubin).ok_or("the compiler's image is no ELF file")?;
    let mut bytes = cubin.to_vec();
    if let Some(frames) = elf.section(".debug_frame") {
        shorten(&mut bytes[frames.offset..frames.offset + frames.size])
            .ok_or("the compiler's image has call frames of an unknown form")?;
    }
    Ok(bytes)
}

/// Writes zeros over all of call frames but the heads of their entries. The frames have DWARF's
/// 64-bit form, as NVIDIA's compilers write it.
fn shorten(mut frames: &mut [u8]) -> Option<()> {
    while !frames.is_empty() {
        let (mark, rest) = frames.split_at_mut_checked(4)?;
        (mark == [0xFF; 4]).then_some(())?;
        let (length, rest) = rest.split_at_mut_checked(8)?;
        let length = u64::from_le_bytes((*length).try_into().ok()?);
        let (entry, rest) = rest.split_at_mut_checked(usize::try_from(length).ok()?)?;
        let head = match entry.get(..8)? {
            // A common entry: the version, 3; no augmentation; the alignments of code and data, a
            // byte each; and the register of the return address.
            [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF] => {
                (entry.get(8..10)? == [3, 0]).then_some(())?;
                after_number(entry, 12)?
            }
            // The entry of a function: where its common entry is. The function's address and size
            // follow.
            _ => 8,
        };
        entry.get_mut(head..)?.fill(0);
        frames = rest;
    }
    Some(())
}

/// The place after a number of variable length, whose last byte has no highest bit.
fn after_number(bytes: &[u8], at: usize) -> Option<usize> {
    Some(at + bytes.get(at..)?.iter().position(|byte| byte & 0x80 == 0)? + 1)
}

/// Packs the images of one family, each padded to the alignment, into one LZMA stream. The second
/// value has the size of each image in the unpacked stream.
fn stream(images: &[Image]) -> Result<(Vec<u8>, Vec<usize>)> {
    let mut bytes = Vec::new();
    let mut sizes = Vec::new();
    for image in images {
        let image = in_stream(image)?;
        sizes.push(image.len());
        bytes.extend(image);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
    if bytes.len() > LARGEST_STREAM {
        return Err(format!(
            "the images of one family have {} bytes, and {LARGEST_STREAM} are the limit",
            bytes.len()
        ));
    }
    let kind = images.first().map_or(Kind::Sass, |image| image.target.1);
    let packed = || -> std::io::Result<Vec<u8>> {
        let options = options(kind, bytes.len());
        let size = Some(bytes.len() as u64);
        let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, size)?;
        writer.write_all(&bytes)?;
        writer.finish()
    };
    let packed = packed().map_err(|e| format!("LZMA: {e}"))?;
    Ok((packed, sizes))
}

/// Packs the images of a kernel file. The images of a family are of one kind.
pub(crate) fn pack(families: &[Vec<Image>]) -> Result<Vec<u8>> {
    // LZMA packs a stream on one core.
    let streams: Vec<Result<_>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            families.iter().map(|images| scope.spawn(|| stream(images))).collect();
        let lost = |_| Err("packing ended in a panic".to_owned());
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(lost)).collect()
    });
    let (streams, sizes): (Vec<_>, Vec<_>) =
        streams.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let mut head = vec![streams.len(), families.iter().map(Vec::len).sum()];
    head.extend(streams.iter().map(Vec::len));
    for (stream, (images, sizes)) in families.iter().zip(sizes).enumerate() {
        for (Image { target: (architecture, kind), .. }, size) in images.iter().zip(sizes) {
            let kind = usize::from(*kind == Kind::Ptx);
            head.extend([stream, kind, *architecture as usize, size]);
        }
    }
    // No word is larger than a stream, nor a stream than LARGEST_STREAM.
    let mut archive = archive::MAGIC.to_vec();
    archive.extend(head.iter().flat_map(|&word| (word as u32).to_le_bytes()));
    archive.extend(streams.concat());
    Ok(archive)
}

/// The families of an archive, and in each family the targets of its images, in their order.
pub(crate) fn families(archive: &[u8]) -> Option<Vec<Vec<Target>>> {
    let mut families: Vec<Vec<Target>> = Vec::new();
    for entry in archive::entries(archive)? {
        if entry.offset == 0 {
            families.push(Vec::new());
        }
        families.last_mut()?.push((entry.architecture, entry.kind));
    }
    Some(families)
}

/// The size of each image of an archive, and how long unpacking it takes, as text.
pub(crate) fn sizes(archive: &[u8]) -> Option<String> {
    let mut text = String::new();
    for entry in archive::entries(archive)? {
        // The shortest of several times: other programs run too.
        let (mut size, mut shortest) = (0, Duration::MAX);
        for _ in 0..5 {
            let start = Instant::now();
            size = entry.unpack()?.len();
            shortest = shortest.min(start.elapsed());
        }
        text.push_str(&format!(
            "    {:10} {:8} bytes, in a stream of {:7}, unpacked in {:5.1} ms\n",
            target_name((entry.architecture, entry.kind)),
            size,
            entry.stream.len(),
            shortest.as_secs_f64() * 1e3,
        ));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images of a family are similar, as compiled kernels are, and none is a multiple of 16 long.
    fn image(architecture: u32, kind: Kind) -> Image {
        if kind == Kind::Ptx {
            let line = |i: u32| format!("\tadd.s32 \t%r{i}, %r{}, {};\n", i * i % 1000 + 1, i * i);
            let bytes = (1..20_002).map(line).collect::<String>().into_bytes();
            return Image { target: (architecture, kind), bytes };
        }
        let words = (0..75_001u32).flat_map(|i| (i.wrapping_mul(i) ^ i >> 7).to_le_bytes());
        let bytes = words.skip(architecture as usize).collect();
        Image { target: (architecture, kind), bytes }
    }

    fn families_of(architectures: &[&[u32]]) -> Vec<Vec<Image>> {
        let sass =
            |family: &&[u32]| family.iter().map(|&a| image(a, Kind::Sass)).collect::<Vec<_>>();
        let mut families: Vec<Vec<Image>> = architectures.iter().map(sass).collect();
        families.push(vec![image(90, Kind::Ptx)]);
        families
    }

    #[test]
    fn every_image_of_a_packed_archive_can_be_unpacked() {
        let all = families_of(&[&[80, 86, 89], &[90], &[100, 120]]);
        let archive = pack(&all).unwrap();
        let targets = |images: &Vec<Image>| images.iter().map(|i| i.target).collect::<Vec<_>>();
        assert_eq!(families(&archive), Some(all.iter().map(targets).collect()));
        let entries = archive::entries(&archive).unwrap();
        for (entry, image) in entries.iter().zip(all.iter().flatten()) {
            assert!(entry.unpack().is_some_and(|unpacked| unpacked == image.bytes));
            assert_eq!(entry.offset % ALIGNMENT, 0);
        }
        assert_eq!(entries.len(), 7);
    }

    #[test]
    fn call_frames_keep_the_heads_of_their_entries() {
        let entry = |length: u8, rest: &[u8]| {
            [&[0xFF; 4][..], &[length, 0, 0, 0, 0, 0, 0, 0], rest].concat()
        };
        let common = [&[0xFF; 8][..], &[3, 0, 4, 0x7C, 0xFF, 0x0F]].concat();
        let function = [7; 8];
        let long = [
            entry(16, &[&common[..], &[8, 9]].concat()),
            entry(10, &[&function[..], &[4, 4]].concat()),
        ];
        let short = [
            entry(16, &[&common[..], &[0, 0]].concat()),
            entry(10, &[&function[..], &[0, 0]].concat()),
        ];
        let mut frames = long.concat();
        assert_eq!(shorten(&mut frames), Some(()));
        assert_eq!(frames, short.concat());
        // Entries of another form, one that ends too soon, and zeros, which have no lengths.
        for bad in [&[0; 16][..], &long[0][..20], &entry(9, &[0xFF; 9]), &entry(4, &[0; 4])] {
            assert_eq!(shorten(&mut bad.to_vec()), None);
        }
    }

    #[test]
    fn images_have_short_call_frames() {
        let path = crate::root().join("crates/spec-cuda/compiled/tree_verify.bin");
        let archive = crate::read(&path).unwrap();
        let entries = archive::entries(&archive).unwrap();
        let images = entries.iter().filter(|entry| entry.kind == Kind::Sass);
        assert!(images.clone().count() > 0);
        for entry in images {
            let image = entry.unpack().unwrap();
            assert!(Elf::new(&image).unwrap().section(".debug_frame").unwrap().size > 0);
            // Without `assert_eq`, which would print the image.
            assert!(with_short_frames(&image) == Ok(image));
        }
        assert!(with_short_frames(b"text").is_err_and(|words| words.contains("no ELF file")));
    }

    #[test]
    fn an_image_beside_a_similar_one_takes_little_room() {
        let one = pack(&families_of(&[&[80]])).unwrap().len();
        let three = pack(&families_of(&[&[80, 86, 89]])).unwrap().len();
        let apart = pack(&families_of(&[&[80], &[86], &[89]])).unwrap().len();
        assert!(three < one + one / 20, "{three} bytes, and {one} with a single image");
        assert!(apart > 3 * (one - one / 2), "{apart} bytes, and {one} with a single image");
    }

    #[test]
    fn an_image_that_does_not_unpack_to_its_size_is_refused() {
        let archive = pack(&families_of(&[&[80, 86]])).unwrap();
        let mut entry = archive::entries(&archive).unwrap()[1];
        let (stream, size) = (entry.stream, entry.size);
        entry.size = size + ALIGNMENT;
        assert!(entry.unpack().is_none(), "larger than the rest of the stream");
        (entry.size, entry.stream) = (size, &stream[..stream.len() / 2]);
        assert!(entry.unpack().is_none(), "half of a stream");
        (entry.stream, entry.offset) = (stream, 1 << 20);
        assert!(entry.unpack().is_none(), "behind the end of the stream");
    }

    #[test]
    fn a_stream_that_needs_too_much_memory_is_not_packed() {
        let bytes = vec![0; LARGEST_STREAM + 1];
        let large = vec![Image { target: (80, Kind::Sass), bytes }];
        assert!(pack(&[large]).is_err_and(|words| words.contains("are the limit")));
    }
}
