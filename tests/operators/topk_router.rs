//! Cases of `topk_router` that the random cases do not cover.

use spec::ops::TopkRouter;
use spec::ops::topk_router::{Buffers, Scoring};
use spec::{DType, Handle, Result};

/// The weights of rows of two experts, both picked.
fn weights(handle: &Handle, params: &TopkRouter, x: &[[f32; 2]]) -> Result<Vec<f32>> {
    let op = handle.create(params, &params.tensors(DType::F32, x.len(), 2, None))?;
    let mut workspace = op.workspace(handle)?;
    let x = handle.upload(x.as_flattened())?;
    let mut weights = handle.allocate::<f32>(x.len())?;
    let mut indices = handle.allocate::<i32>(x.len())?;
    let buffers = Buffers::new(x.view(), weights.view_mut(), indices.view_mut());
    op.call(&mut workspace, buffers)?;
    weights.to_vec()
}

#[test]
fn the_share_of_a_score_is_scaled_not_the_score() {
    let params = TopkRouter::new(2).scoring(Scoring::SqrtSoftplus).renormalize(true).scale(3e38);
    // Square roots of 100 and 100, of 400 and 25, of the largest f32 twice; and a score that
    // is 0 compared with the other.
    let x = [[100.0, 100.0], [400.0, 25.0], [f32::MAX, f32::MAX], [1.0, -200.0]];
    let shares = [0.5, 0.5, 0.8, 0.2, 0.5, 0.5, 1.0, 0.0];
    for handle in crate::common::handles() {
        let weights = weights(&handle, &params, &x).unwrap();
        for (at, (weight, share)) in weights.iter().zip(shares).enumerate() {
            let error = (weight - 3e38 * share).abs();
            let device = handle.device();
            assert!(error <= 2e-5 * 3e38, "{device}: weight {at} is {weight}, {share} of 3e38");
        }
    }
}
