package deploy

import "time"

// SetBuildWait sets how long a build keeps its place among the concurrent ones.
func (m *Manager) SetBuildWait(d time.Duration) { m.buildWait = d }

// SetBundleAge sets the age from which a bundle that no index names counts as left over.
func (m *Manager) SetBundleAge(d time.Duration) { m.bundleAge = d }
