//! Memory for the workspace and the arguments of a call.

use spec_core::{Backend, DType, Error, Memory, PlaceMut, ViewMut};

use crate::argument::Argument;
use crate::pool::is_pooled;
use crate::report::{Failure, failed};
use crate::tensor::{Data, Held, Layout};

/// An argument starts at a multiple of this many bytes, plus the elements that a layout adds.
const LINE: usize = 256;
/// The smallest number of bytes between the end of an argument and the next one.
const FENCE: usize = 64;
/// The value of bytes that belong to no argument.
const POISON: u8 = 0xA5;

/// The workspace and the arguments of a call on a device.
///
/// Each argument has an allocation of its own, so that a tool that checks allocations (such as
/// AddressSanitizer) sees a call that leaves an argument. On a [`Pooled`](crate::Pooled) backend,
/// all arguments share one allocation instead, as in an engine's arena. One copy brings a case to
/// the device and another copy brings it back. Each argument starts where its layout says,
/// aligned to no more than the size of its element, and the poison around it must not change.
/// Where memory is made of buffer objects, arguments have separate allocations in any case, because
/// a shader may not read and write the same object.
pub(crate) struct Arguments {
    spans: Vec<Span>,
    memory: Storage,
}

enum Storage {
    /// One allocation for all arguments, with the workspace behind them. `bytes` are the
    /// arguments as they were last written.
    Together {
        memory: Box<dyn Memory>,
        bytes: Vec<u8>,
    },
    Apart {
        workspace: Held,
        arguments: Vec<Held>,
    },
}

/// The place of an argument in an allocation, in bytes.
struct Span {
    name: &'static str,
    dtype: DType,
    start: usize,
    end: usize,
}

impl std::fmt::Debug for Arguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.spans.iter().map(|span| span.name)).finish()
    }
}

impl Arguments {
    /// Memory of a backend with these arguments, and with a workspace of `workspace` bytes that
    /// holds poison.
    pub(crate) fn new<B: Backend + ?Sized>(
        backend: &B,
        arguments: &[Argument],
        layout: Layout,
        workspace: usize,
    ) -> Result<Self, Error> {
        let (spans, size) = spans(arguments, layout);
        let mut sample = backend.allocate_bytes(0)?;
        let object = matches!(sample.view_mut(DType::U8, 0).place(), PlaceMut::Object { .. });
        if object || !is_pooled(&*sample) {
            let upload = |Argument { tensor, .. }: &Argument| {
                let data = tensor.spread(layout);
                Held::upload(backend, data.dtype(), data.bytes())
            };
            let workspace = Held::poisoned(backend, workspace)?;
            let arguments = arguments.iter().map(upload).collect::<Result<_, _>>()?;
            return Ok(Arguments { spans, memory: Storage::Apart { workspace, arguments } });
        }
        let mut memory = backend.allocate_bytes(size + workspace)?;
        let mut bytes = vec![POISON; size + workspace];
        fill(&mut bytes, &spans, arguments, layout);
        memory.write(&bytes)?;
        bytes.truncate(size);
        Ok(Arguments { spans, memory: Storage::Together { memory, bytes } })
    }

    /// Overwrites all arguments by others of the same types, shapes and layout.
    pub(crate) fn write(&mut self, arguments: &[Argument], layout: Layout) -> Result<(), Error> {
        match &mut self.memory {
            Storage::Together { memory, bytes } => {
                fill(bytes, &self.spans, arguments, layout);
                memory.write(bytes)
            }
            Storage::Apart { arguments: held, .. } => {
                let mut pairs = held.iter_mut().zip(arguments);
                pairs.try_for_each(|(held, argument)| {
                    held.write(argument.tensor.spread(layout).bytes())
                })
            }
        }
    }

    /// The workspace, and each argument by its name.
    pub(crate) fn views(&mut self) -> (ViewMut<'_>, Vec<(&'static str, ViewMut<'_>)>) {
        match &mut self.memory {
            Storage::Together { memory, bytes } => {
                let all = memory.size();
                let (mut rest, workspace) = memory.view_mut(DType::U8, all).split_at(bytes.len());
                let mut at = 0;
                let view = |span: &Span| {
                    let all = std::mem::replace(&mut rest, ViewMut::empty());
                    let (view, after) = all.split_at(span.start - at).1.split_at(span.len());
                    (rest, at) = (after, span.end);
                    (span.name, view.cast(span.dtype))
                };
                let arguments = self.spans.iter().map(view).collect();
                (workspace, arguments)
            }
            Storage::Apart { workspace, arguments } => {
                let named = self.spans.iter().zip(arguments);
                let arguments = named.map(|(span, held)| (span.name, held.view_mut())).collect();
                (workspace.view_mut(), arguments)
            }
        }
    }

    /// The contents of the arguments, after the work enqueued on the backend's own stream.
    pub(crate) fn read(&self, arguments: &[Argument]) -> Result<Vec<Data>, Failure> {
        match &self.memory {
            Storage::Together { memory, bytes } => {
                let mut now = vec![0; bytes.len()];
                memory.read(&mut now).map_err(failed("read"))?;
                let mut end = 0;
                let mut data = Vec::with_capacity(self.spans.len());
                for (span, argument) in self.spans.iter().zip(arguments) {
                    untouched(&now[end..span.start], span.name)?;
                    end = span.end;
                    let mut held = argument.tensor.data.poison(span.len() / span.dtype.size());
                    held.bytes_mut().copy_from_slice(&now[span.start..end]);
                    data.push(held);
                }
                untouched(&now[end..], "end")?;
                Ok(data)
            }
            Storage::Apart { arguments: held, .. } => {
                let pairs = held.iter().zip(arguments);
                let read = |(held, argument): (&Held, &Argument)| held.read(&argument.tensor.data);
                pairs.map(|pair| read(pair).map_err(failed("read"))).collect()
            }
        }
    }
}

impl Span {
    fn len(&self) -> usize {
        self.end - self.start
    }
}

/// Copies arguments to their places in `bytes`.
fn fill(bytes: &mut [u8], spans: &[Span], arguments: &[Argument], layout: Layout) {
    for (span, argument) in spans.iter().zip(arguments) {
        let data = argument.tensor.spread(layout);
        bytes[span.start..span.end].copy_from_slice(data.bytes());
    }
}

/// Fails where a byte of the poison before an argument has changed.
fn untouched(gap: &[u8], argument: &str) -> Result<(), Failure> {
    let Some(at) = gap.iter().position(|byte| *byte != POISON) else { return Ok(()) };
    Err(Failure {
        got: format!("a write {} bytes before it", gap.len() - at),
        ..Failure::of(argument, "memory between arguments untouched")
    })
}

/// The place of each argument, and the number of bytes that all need together.
fn spans(arguments: &[Argument], layout: Layout) -> (Vec<Span>, usize) {
    let mut end = 0;
    let span = |Argument { name, tensor, .. }: &Argument| {
        let dtype = tensor.data.dtype();
        let start = (end + FENCE).next_multiple_of(LINE) + layout.shift() * dtype.size();
        end = start + tensor.extent(layout) * dtype.size();
        Span { name, dtype, start, end }
    };
    let spans = arguments.iter().map(span).collect();
    (spans, (end + FENCE).next_multiple_of(LINE))
}

#[cfg(test)]
mod tests {
    use spec_core::Role;

    use super::*;
    use crate::Pooled;
    use crate::plain::Plain;
    use crate::tensor::Tensor;

    #[test]
    fn arguments_share_memory_in_which_the_rest_is_watched() {
        let argument = |name, tensor| Argument { name, role: Role::InPlace, tensor };
        let case = [
            argument("tokens", Tensor::vector(vec![1_i64, 2, 3])),
            argument("nothing", Tensor::vector(Vec::<u8>::new())),
            argument("scores", Tensor::matrix(vec![1.0_f32, 2.0, 3.0, 4.0], 2, 2)),
        ];
        let layout = Layout::gaps(3);
        let mut held = Arguments::new(&Pooled::new(Plain::default()), &case, layout, 5).unwrap();
        let all = held.read(&case).unwrap();
        let values: Vec<_> = all.iter().map(Data::bytes).map(<[u8]>::len).collect();
        assert_eq!(values, [6 * 8, 3, 2 * 5 * 4]);
        {
            let (workspace, mut views) = held.views();
            assert_eq!(workspace.host::<u8>(), Some(&mut [POISON; 5][..]));
            assert_eq!(views.iter().map(|(name, _)| *name).collect::<Vec<_>>()[1], "nothing");
            let (_, tokens) = views.remove(0);
            let tokens = tokens.host::<i64>().expect("aligned for its type");
            assert_eq!(tokens[..3], [1, 2, 3]);
            assert_ne!(tokens.as_ptr().addr() % 16, 0);
            tokens[0] = 7;
        }
        assert_eq!(held.read(&case).unwrap()[0].show(0), "7");
        held.write(&case, layout).unwrap();
        assert_eq!(held.read(&case).unwrap()[0].show(0), "1");
        for at in [0, LINE + 3 * 8 - 4, LINE + 3 * 8 + 6 * 8] {
            let Storage::Together { memory, .. } = &mut held.memory else { panic!("it is pooled") };
            memory.write_at(at, &[0; 4]).unwrap();
            assert!(held.read(&case).is_err(), "byte {at}");
            held.write(&case, layout).unwrap();
        }
    }
}
