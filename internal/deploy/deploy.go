package deploy

import (
	"context"

	"github.com/toolmesh/toolmesh/internal/index"
	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/subjects"
	"github.com/toolmesh/toolmesh/tool"
)

// Builder makes servable instances from an index's source. Where a build has NoBuild it
// builds no package: if one must be built, the error is install_failed with the reason "builds" and
// the names in details.builds.
type Builder interface {
	// Lock resolves the dependencies of a source, once and for all nodes. Empty means that none are
	// declared.
	Lock(ctx context.Context, b Build, progress Progress) ([]byte, error)
	// Plan returns how the tools of a build would run, and the builds of its environment: User to
	// Builds of a [Plan]. It runs no code of the index. Without a lock it skips the environment.
	Plan(ctx context.Context, b Build, progress Progress) (Plan, error)
	// Open makes the environment and imports the tools.
	Open(ctx context.Context, b Build, progress Progress) (Instance, error)
}

// Server is the node's side that callers see.
type Server interface {
	// Publish offers an instance in place of the earlier one of its name.
	Publish(ctx context.Context, i Instance) error
	// PublishFailed lists the tools of an index that this node cannot serve.
	PublishFailed(ctx context.Context, b Build, reason string) error
	// Withdraw takes an index back.
	Withdraw(ctx context.Context, name subjects.IndexName, session subjects.SessionID) error
}

// Instance is an index that has been imported.
type Instance interface {
	Build() Build
	// Descriptors are those of the tools that can be called, Unavailable the others.
	Descriptors() []*tool.Descriptor
	Unavailable() []NotServed
	// Warnings are shown to the user that installs.
	Warnings() []string
	// Close drains and ends it.
	Close(ctx context.Context) error
}

// Build is one revision of an index, unpacked on this node.
type Build struct {
	Name     subjects.IndexName
	Session  subjects.SessionID
	Revision string
	// Dir is the source's folder, which belongs to this build alone.
	Dir string
	// Own is the agent's own folder for the build: no process of the index reads or
	// writes there. It goes when Dir goes or is unpacked anew.
	Own      string
	Lock     []byte
	Manifest *index.Manifest
	// Env are the values of declared variables.
	Env map[string]string
	// Paths are the folders given at the install.
	Paths []index.Folder
	// NoBuild refuses packages that must be built; see [Builder].
	NoBuild bool
}

// NotServed is a declared tool that is not served.
type NotServed struct {
	ID     subjects.ToolID `json:"id"`
	Reason string          `json:"reason"`
}

// Progress hears of steps of a build; percent is -1 where it is unknown.
type Progress func(step, state string, percent int)

// Request is the body of mesh.admin.install.
type Request struct {
	// Source is the argument of `mesh install`; for a bundle, the path of the folder.
	Source string `json:"source"`
	// Bundle is the digest of a folder that the client has put into MESH_BUNDLES.
	Bundle  string             `json:"bundle,omitempty"`
	Name    subjects.IndexName `json:"name,omitempty"`
	Rev     string             `json:"rev,omitempty"`
	Env     map[string]string  `json:"env,omitempty"`
	Session subjects.SessionID `json:"session,omitempty"`
	// Literal names the variables of Env with a value from the command line; for secrets that is
	// refused.
	Literal []string `json:"literal,omitempty"`
	// Paths are folders of the nodes that the tools are given.
	Paths []index.Folder `json:"paths,omitempty"`
	// On are the labels of the nodes that are to serve it. nil: as it was installed
	// before, else every node; empty, but not nil: every node.
	On registry.Labels `json:"on,omitzero"`
	// Managed is the digest of the entry of a file that it is installed for, all of which
	// the request says: nothing is kept that was given before.
	Managed string `json:"managed,omitempty"`
	// Replace takes the name over from an index of another source or owner.
	Replace bool `json:"replace,omitempty"`
	// DryRun has the answer be a [Plan], and nothing installed.
	DryRun bool `json:"dry_run,omitempty"`
	// NoBuild has an install refused that would build packages or run an init command:
	// install_failed with the reason "builds", and a [Plan] in details.plan.
	NoBuild bool `json:"no_build,omitempty"`
	// Owner is the signer of the request; see [Signer].
	Owner string `json:"-"`
}

// Plan lists the steps of an install and their user, found out without running code of the index.
type Plan struct {
	Index    subjects.IndexName `json:"index"`
	Revision string             `json:"revision"`
	Tools    []subjects.ToolID  `json:"tools"`
	// User that the tools run as: "own", the index's own; "agent", the agent's; else a user's name.
	User string `json:"user"`
	Root bool   `json:"root,omitempty"` // the agent's user is root
	// Sandbox is the level that tools get which demand none, Sandboxes those that are demanded.
	Sandbox   tool.Sandbox                     `json:"sandbox"`
	Sandboxes map[subjects.ToolID]tool.Sandbox `json:"sandboxes,omitempty"`
	// Network reports whether a tool or a step of the install reaches the network.
	Network bool `json:"network"`
	// Builds are the packages that have to be built from source, which runs code of theirs.
	Builds []string `json:"builds"`
	// Init is the command that is run once, as its arguments.
	Init []string `json:"init"`
	// Variables are those that the index declares, Paths the folders that it asks for or is given.
	Variables []index.EnvVar `json:"variables"`
	Paths     []index.Folder `json:"paths"`
}

// Line is one line of the answer to an install: a step (Job to Percent), or at last
// the index, or the plan of a dry run.
type Line struct {
	Job     string `json:"job,omitempty"`
	Step    string `json:"step,omitempty"`
	State   string `json:"state,omitempty"`   // running, done
	Percent *int   `json:"percent,omitempty"` // of a step only
	For     string `json:"for,omitempty"`     // the job that the step "wait" waits for

	Index       subjects.IndexName `json:"index,omitempty"`
	Revision    string             `json:"revision,omitempty"`
	Tools       []subjects.ToolID  `json:"tools,omitzero"`
	Unavailable []NotServed        `json:"unavailable,omitzero"`
	Warnings    []string           `json:"warnings,omitempty"`

	Plan *Plan `json:"plan,omitempty"`
}

// Split makes two lines of one that no message carries, if one of its lists has several items.
func (l Line) Split() (first, rest Line, ok bool) {
	tools, unavailable, warnings := len(l.Tools)/2, len(l.Unavailable)/2, len(l.Warnings)/2
	first, rest = l, l
	first.Tools, rest.Tools = l.Tools[:tools], l.Tools[tools:]
	first.Unavailable, rest.Unavailable = l.Unavailable[:unavailable], l.Unavailable[unavailable:]
	first.Warnings, rest.Warnings = l.Warnings[:warnings], l.Warnings[warnings:]
	return first, rest, tools+unavailable+warnings > 0
}

// settings is the part of an index's record that only agents read.
type settings struct {
	Env   map[string]string `json:"env,omitempty"`
	Paths []index.Folder    `json:"paths,omitempty"`
}
