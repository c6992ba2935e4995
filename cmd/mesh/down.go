package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/wake"
)

const stopTimeout = 45 * time.Second

func (a *app) downCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "down", Short: "Stop the mesh that mesh up started here",
		Long: `Stop the mesh that mesh up started on this machine: the latest, or the one of --server
or --data-dir. Calls in flight end first; installed indexes stay.`,
		Args: nothing,
		RunE: runE(func(ctx context.Context, _ []string) error {
			r, err := a.findUp(dir)
			if err != nil {
				return err
			}
			if err := a.stopProcess(ctx, r); err != nil {
				return err
			}
			a.tell(map[string]any{"url": r.URL, "stopped": true}, "stopped the mesh at %s", r.URL)
			return nil
		}),
	}
	wordFlag(cmd, &dir, "data-dir", "the mesh whose files are in `DIR`")
	return cmd
}

func (a *app) findUp(dir string) (connect.Record, error) {
	none := func(format string, args ...any) (connect.Record, error) {
		return connect.Record{}, refused(toolmesh.OriginCaller, toolmesh.CodeUnavailable, format, args...)
	}
	if dir != "" {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return connect.Record{}, usage(nil, "--data-dir %s: %s", dir, err.Error())
		}
		if r, alive, _ := connect.ReadRecord(filepath.Join(dir, upFile)); alive {
			return r, nil
		}
		return none("no mesh runs in %s", dir)
	}
	all := connect.StateOf(a.env).Running()
	if a.serverFlag {
		if i := slices.IndexFunc(all, func(r connect.Record) bool { return r.URL == strings.TrimSuffix(a.set.URL, "/") }); i >= 0 {
			return all[i], nil
		}
		return none("no mesh at %s was started on this machine by mesh up", connect.Redact(a.set.URL))
	}
	if len(all) == 0 {
		return none("no mesh runs that mesh up started on this machine")
	}
	return all[0], nil
}

// stopProcess asks the process of a mesh to end and waits for its end.
func (a *app) stopProcess(ctx context.Context, r connect.Record) error {
	p, err := os.FindProcess(r.PID)
	if err == nil {
		err = p.Signal(syscall.SIGTERM)
	}
	if err != nil && connect.ProcessID(r.PID) == r.Process {
		return toolmesh.Errorf(toolmesh.CodePermissionDenied, "process %d cannot be stopped: %w", r.PID, err)
	}
	within, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for connect.ProcessID(r.PID) == r.Process {
		switch {
		case wake.After(within, 20*time.Millisecond):
		case ctx.Err() != nil:
			return context.Cause(ctx)
		default:
			return toolmesh.Errorf(toolmesh.CodeUnavailable, "process %d was told to stop and has not done so within %s: it may be waiting for a call; kill -KILL %d ends it at once", r.PID, stopTimeout, r.PID)
		}
	}
	return nil
}
