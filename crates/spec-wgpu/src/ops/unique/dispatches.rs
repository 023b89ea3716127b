//! The dispatches of a call, one after the other: sorting by buckets and by digits, compacting.

use spec_core::Result;

use super::shape::{BindingLayout, Buckets, SURVEYS, Shape, WINDOW_BINDINGS, WINDOWS, Window};
use super::{DIGITS, Params, Sorter, THREADS};
use crate::launch::{MAX_BINDINGS, Recorder};
use crate::memory::Region;
use crate::shader::Program;

/// The largest number of workgroups of a pass by digits: even if the pass turns out to be
/// unnecessary, each of its workgroups costs time.
const MAX_GROUPS: u64 = 1 << 14;

/// The buffers of a call: `keys`, `distinct` and `area` hold keys, the others 32-bit words.
pub(super) struct Call<'a> {
    pub(super) keys: Region<'a>,
    pub(super) distinct: Region<'a>,
    pub(super) count: Region<'a>,
    pub(super) occurrences: Option<Region<'a>>,
    pub(super) area: Region<'a>,
    pub(super) table: Region<'a>,
    pub(super) state: Region<'a>,
}

/// A buffer that holds keys.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Keys,
    Area,
    Distinct,
}

/// What one dispatch reads and writes.
#[derive(Clone, Copy)]
struct Step<'a> {
    from: Place,
    to: Option<Place>,
    source: Window,
    before: bool,
    after: bool,
    target: Window,
    digit: u32,
    counts_keys: bool,
    counters: Option<Region<'a>>,
}

impl Step<'_> {
    fn from(from: Place, source: Window) -> Self {
        Step {
            from,
            to: None,
            source,
            before: false,
            after: false,
            target: Window::default(),
            digit: 0,
            counts_keys: false,
            counters: None,
        }
    }
}

impl Sorter {
    /// Records the dispatches that sort the keys.
    pub(super) fn sort(&self, r: &mut Recorder<'_>, call: &Call<'_>) -> Result<()> {
        let shape = &self.shape;
        if shape.layout == BindingLayout::Part || shape.n == 0 {
            return self.sort_by_digits(r, call);
        }
        let all = Step::from(Place::Keys, Window { start: 0, len: shape.n });
        let cells = self.shape.buckets.map_or(1, |b| b.cells());
        self.run(r, &self.begin, call, all, cells.div_ceil(THREADS))?;
        self.run(r, &self.survey, call, all, shape.surveys())?;
        self.run(r, &self.choose, call, all, 1)?;
        let Some(by) = &self.by_buckets else {
            return self.sort_by_digits(r, call);
        };
        let Buckets { buckets, low_bits, .. } = by.buckets;
        let tiles = shape.n.div_ceil(by.buckets.capacity());
        if buckets > 1 {
            self.run(r, &by.count_firsts, call, all, tiles.min(SURVEYS))?;
        }
        if low_bits > 0 {
            self.run(r, &by.arrange_firsts, call, all, 1)?;
            self.run(r, &by.partition_first, call, all, tiles)?;
            let tiles = by.buckets.second_tiles(shape.n);
            self.run(r, &by.count_seconds, call, all, tiles)?;
            self.run(r, &by.arrange, call, all, 1)?;
            self.run(r, &by.partition_second, call, all, tiles)?;
        } else if buckets > 1 {
            self.run(r, &by.arrange, call, all, 1)?;
            self.run(r, &by.partition_first, call, all, tiles)?;
        }
        self.run(r, &by.sort_buckets, call, all, buckets)?;
        // A single bucket has room for all keys, so sorting by digits is never needed after it.
        if buckets > 1 { self.sort_by_digits(r, call) } else { Ok(()) }
    }

    fn sort_by_digits(&self, r: &mut Recorder<'_>, call: &Call<'_>) -> Result<()> {
        let shape = &self.shape;
        let mut from = Place::Keys;
        for digit in 0..shape.digits() {
            // The last pass must write to `area`, as in the shader.
            let last = (shape.digits() - digit) % 2 == 1;
            let to = if last { Place::Area } else { Place::Distinct };
            for source in shape.windows() {
                let step = Step { digit, ..Step::from(from, source) };
                let groups = source.len.div_ceil(shape.tile()).min(MAX_GROUPS);
                self.run(r, &self.count, call, step, groups)?;
            }
            let step = Step { digit, ..Step::from(from, Window::default()) };
            let groups = if shape.n == 0 { 0 } else { DIGITS };
            self.run(r, &self.prefix, call, step, groups)?;
            for source in shape.windows() {
                for target in shape.windows() {
                    let step = Step { to: Some(to), target, digit, ..Step::from(from, source) };
                    let groups = source.len.div_ceil(shape.tile()).min(MAX_GROUPS);
                    self.run(r, &self.scatter, call, step, groups)?;
                }
            }
            from = to;
        }
        Ok(())
    }

    /// Compacts the sorted keys, counts them, and counts occurrences.
    pub(super) fn write(&self, r: &mut Recorder<'_>, call: &Call<'_>) -> Result<()> {
        let shape = &self.shape;
        let tiles = |source: Window| source.len.div_ceil(shape.tile());
        let windows = || {
            shape.windows().map(|source| Step {
                before: source.start > 0,
                after: source.start + source.len < shape.n,
                ..Step::from(Place::Area, source)
            })
        };
        for step in windows() {
            self.run(r, &self.heads, call, step, tiles(step.source))?;
        }
        let step = Step::from(Place::Area, Window::default());
        let step = Step { counts_keys: true, counters: Some(call.count), ..step };
        self.run(r, &self.prefix, call, step, 1)?;
        for step in windows() {
            for target in shape.windows() {
                let step = Step { to: Some(Place::Distinct), target, ..step };
                self.run(r, &self.compact, call, step, tiles(step.source))?;
            }
        }
        let Some(occurrences) = call.occurrences else { return Ok(()) };
        for target in shape.windows() {
            let step = Step::from(Place::Area, Window::default());
            let step = Step { target, counters: Some(occurrences), ..step };
            self.run(r, &self.clear, call, step, target.len.div_ceil(THREADS))?;
            for step in windows() {
                let step = Step { target, counters: Some(occurrences), ..step };
                self.run(r, &self.occurrences, call, step, tiles(step.source))?;
            }
        }
        Ok(())
    }

    /// Records one dispatch. Where a dispatch handles all keys, every buffer is bound and the
    /// shader chooses among them; otherwise only the buffers that `step` names are bound.
    fn run(
        &self,
        r: &mut Recorder<'_>,
        program: &Program,
        call: &Call<'_>,
        step: Step<'_>,
        groups: u64,
    ) -> Result<()> {
        let Shape { n, window, layout, signed, .. } = self.shape;
        let Step { source, target, .. } = step;
        let first = source.start - u64::from(step.before);
        let mut regions = [Region::nothing(); WINDOW_BINDINGS];
        regions[5] = call.table;
        regions[6] = call.state;
        let counters = step.counters.unwrap_or_else(Region::nothing);
        if layout == BindingLayout::Part {
            let len = source.len + u64::from(step.before) + u64::from(step.after);
            let places = [call.keys, call.area, call.distinct];
            // In the order of the bindings: the buffer to read, then the buffer to write.
            regions[step.from as usize] = places[step.from as usize].elements(first, len);
            if let Some(to) = step.to {
                regions[to as usize + 2] = places[to as usize].elements(target.start, target.len);
            }
            regions[7] = counters.elements(2 * target.start, 2 * target.len);
        } else {
            // The first window (for `BindingLayout::Whole` the whole tensor), then the others.
            let others = WINDOWS - 1;
            let tensors = [(0, call.keys, 1), (3, call.area, 1), (4, call.distinct, 1)];
            for (i, (slot, region, each)) in
                tensors.into_iter().chain([(7, counters, 2)]).enumerate()
            {
                regions[slot] = region.elements(0, each * window);
                for w in 1..=others {
                    let slot = MAX_BINDINGS + (i as u64 * others + w - 1) as usize;
                    regions[slot] = region.elements(each * w * window, each * window);
                }
            }
        }
        if step.counts_keys {
            regions[7] = counters;
        }
        let bound = program.bindings().len();
        let highest = signed && step.digit + 1 == self.shape.digits();
        let buckets = self.shape.buckets;
        let params = Params {
            n: n as u32,
            start: source.start as u32,
            len: source.len as u32,
            bound: first as u32,
            to: target.start as u32,
            to_len: target.len as u32,
            window: window as u32,
            tiles: self.shape.tiles() as u32,
            digit: step.digit,
            flip: if highest { 0x80 } else { 0 },
            forced: if layout == BindingLayout::Part { u32::MAX } else { 0 },
            counts_keys: u32::from(step.counts_keys),
            sign: if signed { 1 << 31 } else { 0 },
            surveys: self.shape.surveys() as u32,
            buckets: buckets.map_or(0, |b| b.buckets as u32),
            low_bits: buckets.map_or(0, |b| b.low_bits),
            firsts: buckets.map_or(0, |b| b.firsts as u32),
            cells: buckets.map_or(0, |b| b.cells() as u32),
        };
        r.dispatch(program, &regions[..bound], &params, groups)
    }
}
