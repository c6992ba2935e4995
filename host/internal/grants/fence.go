//go:build !lanes_without_fence

package grants

// fenced: a call that may have lost its lane is stopped. The checker of lanes is tested with a
// build in which it is off.
const fenced = true
