//! `spec unique` with files whose form only their bytes tell: compressed files of every kind, and
//! files of other programs, which must not be taken for raw keys.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
    command.args(["unique", "--device", "cpu", "--threads", "2"]).args(arguments);
    command.current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn succeeds(folder: &Path, arguments: &[&str]) -> Output {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", words(&output.stderr));
    output
}

/// Runs a command that must fail with one sentence that contains `expected`, and must write
/// nothing.
#[track_caller]
fn refused(folder: &Path, arguments: &[&str], expected: &str) {
    let output = run(folder, &[arguments, &["-o", "-"]].concat());
    let stderr = words(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(stderr.starts_with("error: ") && stderr.contains(expected), "{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty(), "{arguments:?} wrote {}", words(&output.stdout));
}

fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn raw(keys: impl IntoIterator<Item = u64>) -> Vec<u8> {
    keys.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The keys that a run finds in a file, as text.
#[track_caller]
fn found(folder: &Path, arguments: &[&str]) -> String {
    words(&succeeds(folder, &[arguments, &["-o", "-", "--output-format", "text"]].concat()).stdout)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

/// The bytes that hexadecimal digits stand for.
fn hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// RFC 8878, 3.1.2: a frame that a decoder skips. `pzstd` begins each of its frames with one.
#[cfg(feature = "zstd")]
fn skippable(kind: u8, content: &[u8]) -> Vec<u8> {
    let len = content.len() as u32;
    [&[0x50 | kind, 0x2A, 0x4D, 0x18], &len.to_le_bytes()[..], content].concat()
}

#[cfg(feature = "zstd")]
#[test]
fn zstd_files_may_begin_with_frames_that_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // The file that pzstd 1.5.4 makes of the keys 0 to 4: the skippable frame has the length of the
    // frame that follows.
    let pzstd = "502a4d18040000002400000028b52ffd0458bd00008000000100020003000400000000000000\
                 045402000301583c9520";
    fs::write(at.join("pzstd"), hex(pzstd)).unwrap();
    assert_eq!(found(at, &["pzstd"]), "0\n1\n2\n3\n4\n");
    let five = zstd::encode_all(&raw(0..5)[..], 3).unwrap();
    for kind in 0..16 {
        for len in [0, 4, 4000, 70_000] {
            let before = skippable(kind, &vec![7; len]);
            fs::write(at.join("keys"), [&before[..], &before, &five, &before, &five].concat())
                .unwrap();
            assert_eq!(found(at, &["keys"]), "0\n1\n2\n3\n4\n", "{kind} {len}");
        }
    }
    // Keys that happen to begin so are keys.
    let first = 0x184D_2A50;
    fs::write(at.join("raw"), raw(first..first + 100)).unwrap();
    assert_eq!(succeeds(at, &["raw", "--count-only"]).stdout, b"100\n");
}

/// A frame of one block that is not compressed. Its descriptor and window are as given, the
/// identifier of a dictionary may be part of the window.
#[cfg(feature = "zstd")]
fn frame(descriptor: u8, window: &[u8], content: &[u8]) -> Vec<u8> {
    let block = (content.len() as u32) << 3 | 1;
    let head = [&[0x28, 0xB5, 0x2F, 0xFD, descriptor], window].concat();
    [&head, &block.to_le_bytes()[..3], content].concat()
}

#[cfg(feature = "zstd")]
#[test]
fn zstd_windows_up_to_the_largest() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let write = |descriptor, window: &[u8]| {
        fs::write(at.join("keys"), frame(descriptor, window, &raw(0..5))).unwrap();
    };
    // The logarithm of a window has its base at 10. A window of 2^27 is the largest that `zstd -d`
    // reads without options.
    for log in [10, 27, 28, 29] {
        write(0, &[(log - 10) << 3]);
        let keys = found(at, &["keys", "--memory", "2GiB"]);
        assert_eq!(keys, "0\n1\n2\n3\n4\n", "{log}");
    }
    // The window is part of the memory.
    refused(at, &["keys", "--memory", "100MiB"], "--memory 100.0 MiB is too little");
    for log in [32, 41] {
        write(0, &[(log - 10) << 3]);
        let words = "keys: cannot read: it is a zstd file with a window of more than 2 GiB, which";
        refused(at, &["keys"], words);
    }
    write(1, &[0, 7]);
    let words = "keys: cannot read: it is a zstd file that needs a dictionary, and none can be";
    refused(at, &["keys"], words);
}

/// `gzip -t` accepts zeros behind the last member, which tapes and block devices leave.
#[test]
fn gzip_files_may_end_with_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for zeros in [1, 2, 10, 17, 512, 300_000] {
        let file = [gzip(&raw(0..3)), gzip(&raw(3..5)), vec![0; zeros]].concat();
        fs::write(at.join("keys"), &file).unwrap();
        assert_eq!(found(at, &["keys"]), "0\n1\n2\n3\n4\n", "{zeros}");
        fs::write(at.join("keys"), [&file[..], b"x"].concat()).unwrap();
        refused(at, &["keys"], "keys: cannot read: it is a gzip file and damaged: ");
        fs::write(at.join("keys"), [&file[..], &gzip(&raw(5..7))].concat()).unwrap();
        refused(at, &["keys"], "keys: cannot read: it is a gzip file and damaged: ");
    }
    fs::write(at.join("keys"), [&gzip(&raw(0..3))[..], b"x"].concat()).unwrap();
    refused(at, &["keys"], "keys: cannot read: it is a gzip file and damaged: ");
}

/// The header of a member names the system, and how hard the program compressed.
#[test]
fn gzip_files_of_every_system() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut file = gzip(&raw(0..500));
    // zlib writes 19 on a Mac; the flags of compression are 0, 2 or 4 as a rule.
    for system in (0..=19).chain([100, 255]) {
        for compression in [0, 2, 4, 1, 255] {
            (file[8], file[9]) = (compression, system);
            fs::write(at.join("keys"), &file).unwrap();
            let count = succeeds(at, &["keys", "--count-only"]).stdout;
            assert_eq!(words(&count), "500\n", "{compression} {system}");
        }
    }
    // Keys that happen to begin so are keys.
    for second in [559_904, 0x0605_0403_0201] {
        fs::write(at.join("raw"), raw([559_903, second, 7, 9])).unwrap();
        assert_eq!(words(&succeeds(at, &["raw", "--count-only"]).stdout), "4\n");
    }
}

/// First bytes of files that other programs wrote.
const FOREIGN: [(&str, &str); 33] = [
    ("an ORC file", "4f52430a061204080550000a120a020000120c0805120608"),
    ("an ORC file", "4f52431100000a061204080550002b00000a130a03000000"),
    ("an Avro file", "4f626a0104146176726f2e636f646563086e756c6c166176"),
    ("an HDF5 file", "894844460d0a1a0a00000000000808000400100000000000"),
    ("an SQLite database", "53514c69746520666f726d61742033001000010100402020"),
    ("a DuckDB database", "9a3c1fd22b6e70114455434b400000000000000000000000"),
    ("a pickle", "80025d7100284b004b014b024b034b04652e"),
    (
        "a pickle",
        "8003636e756d70792e5f636f72652e6d756c746961727261790a5f7265636f6e7374727563740a7100",
    ),
    ("a pickle", "636e756d70792e5f636f72652e6d756c746961727261790a5f7265636f6e7374727563740a7100"),
    ("a pickle", "5d7100284b004b014b024b034b04652e"),
    ("a pickle", "8004950f000000000000005d94284b004b014b024b034b04"),
    ("a pickle", "8005959c000000000000008c136e756d70792e5f636f7265"),
    ("a Feather file of version 1", "464541310000000000000000000000000100000000000000"),
    ("an encrypted Parquet file", "504152451504150015264c150a1500120000182600000000"),
    ("an Arrow stream", STREAM),
    ("an Arrow stream", OLD_STREAM),
    ("a safetensors file", "48000000000000007b225f5f6d657461646174615f5f223a7b22666f726d6174"),
    ("a GGUF file", "474755460300000023010000000000001700000000000000"),
    ("a MATLAB file", "4d41544c414220352e30204d41542d66696c652c20506c61"),
    ("a NumPy file", "934e554d5059010076007b276465736372273a20273c6938"),
    ("a 7z file", "377abcaf271c0004a5ab9c7a2c00000000000000620000000000"),
    ("a rar file", "526172211a0700cf907300000d0000000000000012345678"),
    ("a rar file", "526172211a070100334d5c0c0a01050600050101808000"),
    (
        "a file of compress",
        "1f9d9069dac07923870e083879c2c891f3e60e8830730e86617130e1c2862ee0288c53a78c418807e35044a890e11d17",
    ),
    (
        "a file of compress",
        "1f9d8969dac07923870e083879c2c891f3e60e8830730e86617130e1c2862ee0288c53a78c418807e35044a890e11d17",
    ),
    (
        "a file of compress",
        "1f9d9000020a1c48b0a0c18308132a5cc8b0a1c38710234a9c48b1a2c58b18336adcc8b1a3c78f20438a1c49b2a4c993",
    ),
    ("a snappy file", "ff060000734e6150705900150000a3bfd7f2051000000000"),
    ("a snappy file", "82534e4150505900000000010000000100000024"),
    ("an lz4 file", "04224d186440a7190000001300010013010800130208001302"),
    ("an lz4 file", "02214c18190000001300010013010800130208001303080080"),
    ("an lz4 file", "502a4d18040000000102030404224d186440a7190000001300"),
    ("a bzip2 file", "425a68393141592653592893707500000240007c00200021"),
    ("a bzip2 file", "425a683917724538509000000000"),
];

/// A stream of one column of i64, by pyarrow 26, and as versions before 0.15 wrote it.
const STREAM: &str = "ffffffff780000001000000000000a000c000600050008000a000000000104000c0000000800080\
                      00000040008000000040000000100000014000000100014000800060007000c000000";
const OLD_STREAM: &str = "7c0000001000000000000a000c000600050008000a000000000104000c000000080008000000\
                          040008000000040000000100000014000000100014000800060007000c000000";

#[test]
fn files_of_other_programs_are_not_taken_for_keys() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for (what, digits) in FOREIGN {
        let mut file = hex(digits);
        // Bytes of no text: a text may begin with the letters of a format.
        file.resize(file.len().next_multiple_of(8) + 4096, 0x9A);
        fs::write(at.join("in"), &file).unwrap();
        refused(at, &["in"], &format!("error: in: is {what}, not raw keys; "));
        refused(at, &["in"], "; --raw takes its bytes as they are");
        succeeds(at, &["--raw", "in", "--count-only"]);
        refused(at, &["--text", "in"], &format!("error: in: is {what}, not text; "));
        if cfg!(feature = "parquet") {
            let words = format!("in: is neither a Parquet nor an Arrow file, but {what}");
            refused(at, &["--column", "key", "in"], &words);
        }
        // In a gzip file, and from a pipe.
        fs::write(at.join("in.gz"), gzip(&file)).unwrap();
        let stdin = File::open(at.join("in.gz")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_spec"));
        let arguments = ["unique", "--device", "cpu", "-", "--count-only"];
        let output = command.args(arguments).stdin(stdin).output().unwrap();
        let expected = format!("error: stdin: is {what}, not raw keys; ");
        assert!(words(&output.stderr).starts_with(&expected), "{}", words(&output.stderr));
    }
    // Forms that are told further from the start.
    let mut tar = vec![b'k'; 1024];
    tar[257..265].copy_from_slice(b"ustar  \0");
    fs::write(at.join("in"), &tar).unwrap();
    refused(at, &["in"], "in: is a tar file, not raw keys; ");
    let user_block = [&[b'x'; 512][..], b"\x89HDF\r\n\x1A\n", &[1; 504]].concat();
    fs::write(at.join("in"), &user_block).unwrap();
    refused(at, &["in"], "in: is an HDF5 file, not raw keys; ");
    for (mark, order) in
        [(b"\xFF\xFE", u16::to_le_bytes as fn(u16) -> [u8; 2]), (b"\xFE\xFF", u16::to_be_bytes)]
    {
        let text: Vec<u8> = "123\r\n456\r\nxyz".encode_utf16().flat_map(order).collect();
        fs::write(at.join("in"), &[&mark[..], &text, &text].concat()[..48]).unwrap();
        refused(at, &["in"], "in: is text in UTF-16, not raw keys; write it in UTF-8");
        refused(at, &["--text", "in"], "in: is text in UTF-16, not text in UTF-8");
    }
}

/// The name of a column may begin as a format does.
#[test]
fn a_header_is_not_taken_for_a_format() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for name in ["PARENT", "PAR1", "ORCID", "GGUF", "LZIP"] {
        for more in ["", &*",x".repeat(3000)] {
            let fields = more.replace('x', "0");
            fs::write(at.join("in.csv"), format!("{name}{more}\n7{fields}\n")).unwrap();
            assert_eq!(found(at, &["--csv", "--column", name, "in.csv"]), "7\n");
        }
        fs::write(at.join("in.txt"), format!("{name}\n7\n")).unwrap();
        assert_eq!(found(at, &["--text", "--skip-lines", "1", "in.txt"]), "7\n");
    }
}

/// A text may begin with a byte order mark, which is no part of its first line.
#[test]
fn a_byte_order_mark_is_no_part_of_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    for text in ["\u{feff}5\r\n7\r\n", "\u{feff}5\n7", "\u{feff}5\n7\n5\n"] {
        fs::write(at.join("in"), text).unwrap();
        fs::write(at.join("in.gz"), gzip(text.as_bytes())).unwrap();
        for name in ["in", "in.gz"] {
            assert_eq!(found(at, &["--text", name]), "5\n7\n", "{text:?}");
            let lenient = succeeds(at, &["--text", "--lenient", name, "-o", "-"]);
            assert_eq!(words(&lenient.stdout), "5\n7\n", "{text:?}");
            assert!(!words(&lenient.stderr).contains("bad lines"), "{}", words(&lenient.stderr));
        }
    }
    fs::write(at.join("in"), "\u{feff}5000\n7000\n").unwrap();
    refused(at, &["in"], "in: is text, one number per line, not raw keys");
    fs::write(at.join("in"), "\u{feff}id\n5\n").unwrap();
    assert_eq!(found(at, &["--text", "--skip-lines", "1", "in"]), "5\n");
    // In any other place it is no digit. The column counts the mark's bytes.
    fs::write(at.join("in"), "\u{feff}5\n\u{feff}6\n").unwrap();
    refused(at, &["--text", "in"], "in: line 2, column 1: '\\u{feff}' is no digit");
    fs::write(at.join("in"), "\u{feff}x\n").unwrap();
    refused(at, &["--text", "in"], "in: line 1, column 4: 'x' is no digit");
}

/// If the reader of stdout gets nothing, it cannot take an output for whole.
#[test]
fn a_run_that_fails_writes_nothing_to_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("in.csv"), "a,b,name\n1,2,7\n3,4,x\n").unwrap();
    let csv = ["--csv", "--column", "name", "in.csv"];
    refused(
        at,
        &csv,
        "in.csv: line 3, column 5: the field `name` is \"x\", which is no number from",
    );
    for format in ["raw", "text", "csv", "parquet"] {
        if format == "parquet" && cfg!(not(feature = "parquet")) {
            continue;
        }
        refused(at, &[&csv[..], &["--output-format", format]].concat(), "is no number from 0 to");
    }
    refused(at, &[&csv[..], &["--memory", "1KiB"]].concat(), "--memory 1.0 KiB is too little");
    // Without keys, the header is still written.
    fs::write(at.join("none.csv"), "name\n").unwrap();
    let none = succeeds(at, &["--csv", "--column", "name", "none.csv", "-o", "-"]);
    assert_eq!(words(&none.stdout), "name\n");
}

/// Blank lines are no fault of a table, but are not lost without a word.
#[test]
fn blank_lines_of_csv_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("in.csv"), "id,b\n1,2\n\n3,4\n\n").unwrap();
    let csv = ["--csv", "--column", "id", "in.csv"];
    let counted = succeeds(at, &[&csv[..], &["--count-only"]].concat());
    assert_eq!(words(&counted.stderr), "blank lines                2\n");
    let quiet = succeeds(at, &[&csv[..], &["--count-only", "--quiet"]].concat());
    assert_eq!(words(&quiet.stderr), "");
    let shown = succeeds(at, &[&csv[..], &["-o", "out"]].concat());
    assert!(words(&shown.stdout).contains("\nblank lines                2\n"), "{shown:?}");
    let json = succeeds(at, &[&csv[..], &["--count-only", "--json"]].concat());
    let summary: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&summary["blank_lines"], &summary["nulls"]), (&2.into(), &0.into()));
    fs::write(at.join("in.csv"), "id\n1\n\n3\n").unwrap();
    refused(at, &csv, "in.csv: line 3, column 1: the field `id` is empty");
    let nulls = [&csv[..], &["--skip-nulls", "--count-only"]].concat();
    assert_eq!(words(&succeeds(at, &nulls).stderr), "nulls                      1\n");
}
