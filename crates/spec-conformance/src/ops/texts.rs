//! Random texts in slots, for `prompt_lookup` and `suffix_lookup`.

use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::tensor::Tensor;
use spec_core::DType;

/// The number of slots for `batch` requests: as many, or another number in a case in which
/// [`with_requests`] gives each request a slot.
pub(super) fn slots(rng: &mut Rng, batch: usize) -> usize {
    match rng.chance(2) {
        true => batch,
        false => rng.size(batch + 8),
    }
}

/// The case with the row of each request, where the numbers of slots and of requests differ or by
/// chance; and by chance with a limit per request.
pub(super) fn with_requests<O: Subject>(
    mut case: Case<O>,
    rng: &mut Rng,
    (slots, batch): (usize, usize),
    max_draft: usize,
) -> Case<O> {
    let wild = rng.pick(&[2, 8, 1_000_000]);
    if slots != batch || rng.chance(3) {
        let row = |rng: &mut Rng| match rng.chance(wild) || slots == 0 {
            false => rng.below(slots) as i32,
            true => rng.pick(&[-1, -1, -1, -2, i32::MIN, i32::MAX, slots as i32, 1 << 20]),
        };
        let rows: Vec<i32> = (0..batch).map(|_| row(rng)).collect();
        case = case.input("requests", requests(rng, rows));
    }
    if rng.chance(3) {
        let limit = |rng: &mut Rng| match rng.chance(wild) {
            false => rng.between(0, max_draft) as i32,
            true => rng.pick(&[-1, i32::MIN, i32::MAX, max_draft as i32 + 1]),
        };
        let limits: Vec<i32> = (0..batch).map(|_| limit(rng)).collect();
        case = case.input("max_drafts", Tensor::vector(limits));
    }
    case
}

/// The slots of requests, as i32 or, with numbers that no i32 can be, as i64.
fn requests(rng: &mut Rng, rows: Vec<i32>) -> Tensor {
    if rng.chance(2) {
        return Tensor::vector(rows);
    }
    let wide = |row: i32| match rng.chance(12) {
        false => i64::from(row),
        true => i64::from(row) + rng.pick(&[1 << 32, -(1 << 32), 1 << 31]),
    };
    Tensor::vector(rows.into_iter().map(wide).collect::<Vec<i64>>())
}

/// The type of the drafts of tokens of the type `token`.
pub(super) fn drafts_dtype(rng: &mut Rng, token: DType) -> DType {
    if rng.chance(4) { DType::I64 } else { token }
}

/// Some of the requests, in another order, some of them twice, with the outputs `written`. Texts
/// move to other rows, or stay where they are while `requests` says where they are.
pub(super) fn recomposed<O: Subject>(
    case: &Case<O>,
    rng: &mut Rng,
    written: &[&'static str],
) -> Recomposed<O> {
    let batch = case.get("drafts").map_or(0, Tensor::rows);
    let wanted = if batch == 0 { 0 } else { rng.between(0, batch + 3) };
    let picked: Vec<usize> = (0..wanted).map(|_| rng.below(batch)).collect();
    let is_mapped = case.get("requests").is_some();
    let texts_stay = is_mapped || rng.chance(2);
    let mut other = case.map(|Argument { name, tensor, .. }| match *name {
        "flags" | "corpus" | "corpus_length" => tensor.clone(),
        "tokens" | "lengths" if texts_stay => tensor.clone(),
        _ => tensor.pick(&picked),
    });
    if texts_stay && !is_mapped {
        let rows: Vec<i32> = picked.iter().map(|&row| row as i32).collect();
        other = other.input("requests", Tensor::vector(rows));
    }
    let given = written.iter().filter(|name| case.get(name).is_some());
    let rows = given.map(|&name| (name, Rows::Of(picked.clone()))).collect();
    Recomposed { case: other, rows }
}

/// Checks that texts lie in slots in some cases, with requests of every kind, and with limits.
#[cfg(test)]
pub(super) fn are_in_slots<O: Subject>(runs: &[(Case<O>, Vec<Argument>)]) {
    use crate::tests::{balanced, integers, share};
    let is = |of: fn(&Case<O>) -> bool| share(runs.iter().map(|(case, _)| of(case)));
    balanced(is(|case| case.get("requests").is_some()), "cases with requests");
    balanced(is(|case| case.get("max_drafts").is_some()), "cases with limits");
    let is_wide = |case: &Case<O>| {
        let dtype = |name| case.get(name).map(|tensor| tensor.data.dtype());
        dtype("drafts") != dtype("tokens")
    };
    balanced(is(is_wide), "drafts wider than tokens");
    let requests: Vec<(i64, usize)> = runs
        .iter()
        .flat_map(|(case, _)| {
            let slots = case.get("tokens").map_or(0, Tensor::rows);
            let requests = integers(&case.arguments, "requests");
            requests.into_iter().map(move |request| (request, slots))
        })
        .collect();
    let is_known = |&(request, slots): &(i64, usize)| {
        usize::try_from(request).is_ok_and(|request| request < slots)
    };
    balanced(share(requests.iter().map(is_known)), "requests with a text");
    let others = || requests.iter().filter(|request| !is_known(request));
    balanced(share(others().map(|(request, _)| *request == -1)), "requests that are padding");
}
