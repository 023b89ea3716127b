//! The promises of handles on any device: memory belongs to a queue, calls accept memory of
//! other frameworks, errors say what to do.

use spec::ops::deduplicate_topk::{Addresses, Buffers};
use spec::ops::{DeduplicateTopk, Unique, unique};
use spec::{Backend, DType, Device, ErrorKind, Handle, Place, Status, Stream, ViewMut};

/// Runs `unique` with a descriptor of `handle` on buffers of `memory`.
fn distinct(handle: &Handle, memory: &Handle) -> spec::Result<Vec<u64>> {
    let operator = handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, 4))?;
    let keys = memory.upload(&[7u64, 3, 7, 3])?;
    let (mut out, mut count) = (memory.upload(&[0u64; 4])?, memory.upload(&[0u64])?);
    let mut workspace = operator.workspace(memory)?;
    operator.call(&mut workspace, unique::Buffers::new(&keys, &mut out, &mut count))?;
    let count = count.to_vec()?[0] as usize;
    Ok(out.to_vec()?[..count].to_vec())
}

/// Two handles of one GPU have two queues, whose work is not ordered. So each handle refuses
/// memory of the other, including workspaces, until the memory is moved.
#[test]
fn memory_of_another_queue_is_refused() {
    for handle in crate::common::handles() {
        let other: Handle = handle.device().to_string().parse().unwrap();
        if other.queue_id() == handle.queue_id() {
            assert_eq!(handle.device(), Device::CPU);
            assert_eq!(distinct(&handle, &other).unwrap(), [3, 7]);
            continue;
        }
        let error = distinct(&handle, &other).expect_err("another handle's memory was taken");
        assert_eq!(error.status(), Status::BadParam, "{error}");
        assert!(error.to_string().contains("another handle"), "{error}");

        let operator =
            handle.create(&Unique::new(), &Unique::new().tensors(DType::U64, 4)).unwrap();
        let keys = handle.upload(&[7u64, 3, 7, 3]).unwrap();
        let mut out = handle.upload(&[0u64; 4]).unwrap();
        let mut count = handle.upload(&[0u64]).unwrap();
        let mut workspace = operator.workspace(&other).unwrap();
        let buffers = unique::Buffers::new(&keys, &mut out, &mut count);
        let error = operator.call(&mut workspace, buffers).unwrap_err();
        assert!(error.to_string().contains("`workspace`"), "{error}");
    }
}

/// After a move, a buffer belongs to the new handle. If the two devices do not share memory,
/// moving is an error.
#[test]
fn memory_moves_to_another_queue() {
    for handle in crate::common::handles() {
        let other: Handle = handle.device().to_string().parse().unwrap();
        let moved = handle.adopt(other.upload(&[5i32, -1, 5, 2]).unwrap());
        let mut indices = match moved {
            Ok(indices) => indices,
            Err(error) => {
                assert_eq!(handle.device().backend(), "wgpu", "{error}");
                assert_eq!(error.status(), Status::BadParam);
                continue;
            }
        };
        let params = DeduplicateTopk::new().mtp_step(1);
        let operator = handle.create(&params, &params.tensors(1, 4)).unwrap();
        let mut unique = handle.allocate::<i32>(4).unwrap();
        let mut workspace = operator.workspace(&handle).unwrap();
        let buffers = Buffers::new(&indices, &mut unique);
        operator.call(&mut workspace, buffers).unwrap();
        assert_eq!(unique.to_vec().unwrap(), [2, 5, -1, -1]);
        indices.write(&[1, 2, 3, 4]).unwrap();
        assert_eq!(indices.to_vec().unwrap(), [1, 2, 3, 4]);
    }
}

/// The descriptor knows dtypes and sizes, so a call needs only addresses.
#[cfg(feature = "cpu")]
#[test]
fn calls_from_addresses() {
    let cpu = Handle::cpu().unwrap();
    let params = DeduplicateTopk::new().mtp_step(2);
    let mut tensors = params.tensors(1, 3);
    let (indices, mut unique) = ([3i32, 1, 3, 2, 1, -1], [0i32; 6]);
    let operator = cpu.create(&params, &tensors).unwrap();
    let mut scratch = vec![0u8; operator.workspace_size()];
    let workspace = scratch.as_mut_ptr();
    let addresses = Addresses::new(indices.as_ptr(), unique.as_mut_ptr());
    // SAFETY: arrays and workspace are as described and nobody else uses them.
    unsafe { operator.call_at(workspace.into(), addresses, Stream::default()) }.unwrap();
    assert_eq!(unique, [1, 2, 3, -1, -1, -1]);

    tensors.counts = Some(spec::TensorDesc::new(DType::I32, [1]));
    let operator = cpu.create(&params, &tensors).unwrap();
    // SAFETY: the buffers are as described; the call refuses the null pointer before using it.
    let error =
        unsafe { operator.call_at(workspace.into(), addresses.counts(0), Stream::default()) };
    assert_eq!(error.unwrap_err().status(), Status::NullPointer);
    // SAFETY: as above.
    let error = unsafe { operator.call_at(workspace.into(), addresses, Stream::default()) };
    assert_eq!(error.unwrap_err().status(), Status::NullPointer, "described, and not given");
}

/// What a call writes has memory of its own. No view of overlapping memory is made.
#[cfg(feature = "cpu")]
#[test]
fn overlapping_addresses_are_refused() {
    let cpu = Handle::cpu().unwrap();
    let params = DeduplicateTopk::new().mtp_step(2);
    let operator = cpu.create(&params, &params.tensors(1, 3)).unwrap();
    let mut scratch = vec![0u8; operator.workspace_size()];
    let given = [7i32, 7, 7, 7, 7, 7, 3, 1, 3, 2, 1, -1, 7, 7, 7, 7, 7, 7];
    let mut memory = given;
    let first = memory.as_mut_ptr();
    for (start, overlaps) in [(0, false), (1, true), (6, true), (11, true), (12, false)] {
        let workspace = scratch.as_mut_ptr();
        // SAFETY: arrays and workspace are as described and nobody else uses them; the call refuses
        // overlapping arrays before using them.
        let called = unsafe {
            let addresses = Addresses::new(first.add(6), first.add(start));
            operator.call_at(workspace.into(), addresses, Stream::default())
        };
        // SAFETY: the call is done, and the array is there.
        let memory = unsafe { first.cast::<[i32; 18]>().read() };
        if overlaps {
            let error = called.unwrap_err();
            assert_eq!(error.status(), Status::BadParam);
            let words = "deduplicate_topk: `unique` is in the memory of `indices`";
            assert!(error.to_string().starts_with(words), "{error}");
        } else {
            called.unwrap();
            assert_eq!(memory[start..start + 6], [1, 2, 3, -1, -1, -1]);
        }
        assert_eq!(memory[6..12], given[6..12], "{start}");
    }
    if operator.workspace_size() > 0 {
        // SAFETY: as above.
        let error = unsafe {
            let addresses = Addresses::new(first.add(6), first);
            operator.call_at(first.add(5).into(), addresses, Stream::default())
        };
        let words = "deduplicate_topk: `workspace` is in the memory of `indices`";
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
}

/// As [`overlapping_addresses_are_refused`], for views of a GPU's memory.
#[test]
fn overlapping_views_are_refused() {
    for handle in crate::common::handles() {
        let params = DeduplicateTopk::new().mtp_step(2);
        let operator = handle.create(&params, &params.tensors(1, 3)).unwrap();
        let memory = handle.upload(&[7i32; 18]).unwrap();
        let other = handle.upload(&[7i32; 18]).unwrap();
        let mut workspace = operator.workspace(&handle).unwrap();
        let (_, given) = memory.view().split_at(6);
        for start in [1, 6, 11] {
            let (_, place) = memory.view().split_at(start);
            // SAFETY: the call refuses the view, because `given` is in its memory.
            let unique = unsafe {
                match place.place() {
                    // Two slices of host memory must not overlap, used or not.
                    Place::Host(_) => continue,
                    Place::Address { device, address } => {
                        ViewMut::from_address(DType::I32, 6, device, address)
                    }
                    Place::Object { device, object, offset } => {
                        ViewMut::from_object(DType::I32, 6, device, object, offset)
                    }
                    _ => unreachable!("a handle's memory has a place"),
                }
            };
            let buffers = Buffers::new(given, unique);
            let error = operator.call(&mut workspace, buffers).unwrap_err();
            assert_eq!(error.status(), Status::BadParam);
            let words = "deduplicate_topk: `unique` is in the memory of `indices`";
            assert!(error.to_string().starts_with(words), "{error}");
        }
        // Equal offsets of two objects are no overlap.
        let mut unique = handle.upload(&[7i32; 6]).unwrap();
        operator.call(&mut workspace, Buffers::new(other.view(), &mut unique)).unwrap();
        assert_eq!(unique.to_vec().unwrap(), [7, -1, -1, -1, -1, -1]);
    }
}

/// The sentence about a name lists the backends of this build, and no other.
#[test]
fn accepted_names_are_those_of_this_build() {
    let error = "gpu".parse::<Handle>().unwrap_err();
    assert_eq!(error.status(), Status::BadParam);
    for (name, built) in [
        ("`cpu`", cfg!(feature = "cpu")),
        ("`cuda`", cfg!(feature = "cuda")),
        ("`wgpu`", cfg!(feature = "wgpu")),
    ] {
        assert_eq!(error.to_string().contains(name), built, "{error}");
    }
    let error = "cuda:99999999999999999999".parse::<Handle>().unwrap_err();
    let words =
        "`cuda:99999999999999999999` is no device, expected a smaller number, as in `cuda:0`";
    assert!(error.to_string().starts_with(words), "{error}");
}

#[test]
fn buffers_are_read_in_part() {
    for handle in crate::common::handles() {
        let bytes: Vec<u8> = (0..100).collect();
        let buffer = handle.upload(&bytes).unwrap();
        for (start, len) in [(0, 0), (0, 100), (1, 5), (3, 97), (98, 2), (100, 0)] {
            let mut part = vec![0xFF; len];
            buffer.read(start, &mut part).unwrap();
            assert_eq!(part, bytes[start..start + len], "{} {start}", handle.device());
        }
        let error = buffer.read(99, &mut [0; 2]).unwrap_err();
        assert_eq!(error.status(), Status::BadTensorShape);
        let wide = handle.upload(&[1u64, 2, 3]).unwrap();
        let mut one = [0];
        wide.read(1, &mut one).unwrap();
        assert_eq!(one, [2]);
    }
}

/// A write in the middle of a buffer leaves the elements before and behind it, also where elements
/// are smaller than the words that devices copy.
#[test]
fn buffers_are_written_in_part() {
    for handle in crate::common::handles() {
        for (start, len) in [(0, 0), (0, 100), (1, 5), (3, 97), (8, 4), (98, 1), (100, 0)] {
            let mut expected: Vec<u8> = (0..100).collect();
            let mut buffer = handle.upload(&expected).unwrap();
            buffer.write_at(start, &vec![0xFF; len]).unwrap();
            expected[start..start + len].fill(0xFF);
            assert_eq!(buffer.to_vec().unwrap(), expected, "{} {start}", handle.device());
        }
        let mut wide = handle.upload(&[1i64, 2, 3]).unwrap();
        wide.write_at(1, &[-1]).unwrap();
        assert_eq!(wide.to_vec().unwrap(), [1, -1, 3]);
        for start in [2, usize::MAX] {
            let error = wide.write_at(start, &[0; 2]).unwrap_err();
            assert_eq!(error.status(), Status::BadTensorShape);
        }
    }
}

/// A descriptor may be used on another thread than the one that created it. The size of the
/// workspace is the same on every thread.
#[test]
fn a_workspace_is_as_large_on_every_thread() {
    let pool =
        |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let keys: Vec<u64> =
        (0..1u64 << 16).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 50).collect();
    for handle in crate::common::handles() {
        let tensors = Unique::new().tensors(DType::U64, keys.len());
        for (made, used) in [(1, 7), (7, 1)] {
            let unique = pool(made).install(|| handle.create(&Unique::new(), &tensors)).unwrap();
            let size = unique.workspace_size();
            let mut workspace = handle.allocate::<u8>(size).unwrap();
            let input = handle.upload(&keys).unwrap();
            let (mut out, mut count) =
                (handle.upload(&keys).unwrap(), handle.upload(&[0u64]).unwrap());
            let buffers = unique::Buffers::new(&input, &mut out, &mut count);
            let sizes = pool(used).install(|| {
                let called = unique.call(&mut workspace, buffers);
                called.map(|()| unique.workspace_size())
            });
            assert_eq!(sizes.unwrap(), size);
            assert_eq!(count.to_vec().unwrap(), [1 << 14]);
        }
    }
}

#[test]
fn too_much_memory_is_told_apart() {
    for handle in crate::common::handles() {
        let error = handle.allocate::<u64>(usize::MAX / 8).unwrap_err();
        assert_eq!(error.status(), Status::InternalError);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        // `fn main() -> spec::Result<()>` prints this.
        assert_eq!(format!("{error:?}"), error.to_string());
        // The device still works after the error.
        assert_eq!(handle.upload(&[1i32]).unwrap().to_vec().unwrap(), [1]);
    }
}

#[test]
fn what_is_passed_over_has_a_reason() {
    let mut reasons = Vec::new();
    let chosen = Handle::choose(|reason| reasons.push(reason.to_string())).unwrap();
    for listing in spec::devices() {
        let name = listing.backend;
        let taken = name == chosen.device().backend();
        let said = reasons.iter().any(|reason| reason.starts_with(name));
        assert!(taken || said || chosen.device().backend() == "cuda", "{name}: {reasons:?}");
    }
}
