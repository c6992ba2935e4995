package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/tool"
)

type usageError struct {
	text string
	path string // of the command whose help says more; "" for none
}

func (e *usageError) Error() string { return e.text }

func usage(cmd *cobra.Command, format string, args ...any) error {
	e := &usageError{text: fmt.Sprintf(format, args...)}
	if cmd != nil {
		e.path = cmd.CommandPath()
	}
	return e
}

// wordsOf is a command as a message names it, behind the program's own name.
func wordsOf(cmd *cobra.Command) string {
	_, words, _ := strings.Cut(cmd.CommandPath(), " ")
	return words
}

func unknownCommand(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("there is no command %q", name)
	if cmd.HasParent() {
		text = fmt.Sprintf("%s has no command %q", wordsOf(cmd), name)
	}
	return usage(cmd, "%s%s", text, didYouMean(name, names(cmd)))
}

// didYouMean asks for the known names that are near to one that is not, if any is.
func didYouMean(name string, known []string) string {
	if near := tool.Nearest(name, known, 2); len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return ""
}

type reported struct{ status int }

func (r *reported) Error() string { return fmt.Sprintf("exit status %d", r.status) }

// status prints an error and returns the exit status that it means.
func (a *app) status(ctx context.Context, err error) int {
	var done *reported
	var wrong *usageError
	switch {
	case err == nil:
		return process.StatusOK
	case errors.As(err, &done):
		return done.status
	case process.Interrupted(ctx):
		a.printError(toolmesh.Errorf(toolmesh.CodeCancelled, "interrupted").WithOrigin(toolmesh.OriginCaller))
		return process.StatusInterrupted
	case errors.As(err, &wrong):
		a.printUsage(wrong)
		return process.StatusUsage
	}
	e := placed(toolmesh.AsError(err))
	a.printError(e)
	return process.Status(e.Code)
}

// placed says of an error that was made in this process that it was: what comes
// from elsewhere says so itself. Of these codes none has begun anything; of the
// others it may not be known.
func placed(e *toolmesh.Error) *toolmesh.Error {
	if e.Origin != "" {
		return e
	}
	e = e.WithOrigin(toolmesh.OriginCaller)
	switch e.Code {
	case toolmesh.CodeInvalidRequest, toolmesh.CodePermissionDenied, toolmesh.CodeToolNotFound,
		toolmesh.CodeSessionNotFound, toolmesh.CodeNotFound, toolmesh.CodeInstallFailed:
		if e.Started == toolmesh.StartedUnknown {
			e = e.WithStarted(toolmesh.StartedNo)
		}
	}
	return e
}

func (a *app) printUsage(e *usageError) {
	a.printError(placed(toolmesh.Errorf(toolmesh.CodeInvalidRequest, "%s", e.text)))
	if e.path != "" && !a.json {
		fmt.Fprintf(a.err, "run %s --help for its usage\n", e.path)
	}
}

// printError tells of a failure: as JSON all of it, and a person what happened, and
// for a failed tool where in its code.
func (a *app) printError(e *toolmesh.Error) {
	if a.json {
		a.printJSON(map[string]any{"error": e})
		return
	}
	kind := cmp.Or(e.Type, string(e.Code)) // a Go tool's error may have no type that says anything
	switch {
	case e.Code != toolmesh.CodeToolError:
		fmt.Fprintf(a.err, "mesh: %s\n", e.Message)
	case e.Message == "": // raise RuntimeError
		fmt.Fprintln(a.err, a.term.strong(kind))
	default:
		fmt.Fprintf(a.err, "%s %s\n", a.term.strong(kind+":"), e.Message)
	}
	if e.Code == toolmesh.CodePermissionDenied {
		fmt.Fprintln(a.err, "give a key that may do this with --nkey FILE or MESH_NATS_NKEY")
	}
	var problems []string
	if e.Code == toolmesh.CodeInstallFailed {
		problems = textsOf(e, "errors") // all that is wrong with a manifest
	}
	for _, p := range tool.Problems(e) {
		problems = append(problems, p.Message)
	}
	for _, p := range problems {
		if !strings.Contains(e.Message, p) {
			fmt.Fprintf(a.err, "  %s\n", p)
		}
	}
	if near := textsOf(e, "nearest"); len(near) > 0 && !strings.Contains(e.Message, near[0]) {
		fmt.Fprintf(a.err, "did you mean %s?\n", strings.Join(near, ", "))
	}
	if trace := strings.TrimRight(e.Stacktrace, "\n"); trace != "" {
		for line := range strings.SplitSeq(trace, "\n") {
			fmt.Fprintln(a.err, a.term.dim("  "+line))
		}
	}
}

// textsOf returns a detail that is a list of texts, nil if it is none.
func textsOf(e *toolmesh.Error, detail string) []string {
	data, _ := json.Marshal(e.Details[detail])
	var texts []string
	if json.Unmarshal(data, &texts) != nil {
		return nil
	}
	return texts
}
