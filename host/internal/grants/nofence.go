//go:build lanes_without_fence

package grants

// fenced is off, only for the checker of lanes: see fence.go.
const fenced = false
