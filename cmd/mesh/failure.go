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
	path string // of the command to point to for help; "" for none
}

func (e *usageError) Error() string { return e.text }

func usage(cmd *cobra.Command, format string, args ...any) error {
	e := &usageError{text: fmt.Sprintf(format, args...)}
	if cmd != nil {
		e.path = cmd.CommandPath()
	}
	return e
}

// wordsOf returns the words of a command after the program's name.
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

// didYouMean suggests the known names similar to an unknown one, if any.
func didYouMean(name string, known []string) string {
	if near := tool.Nearest(name, known, 2); len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return ""
}

type reported struct{ status int }

func (r *reported) Error() string { return fmt.Sprintf("exit status %d", r.status) }

// status prints an error and returns its exit status.
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

// refused returns an error of a call or a change that has not begun.
func refused(origin toolmesh.Origin, code toolmesh.Code, format string, args ...any) error {
	return toolmesh.Errorf(code, format, args...).WithOrigin(origin).WithStarted(toolmesh.StartedNo)
}

// placed marks an error as raised in this process, unless it has an origin. With these codes no
// call has begun; with other codes that is unknown.
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

// printError prints a failure: all of it as JSON, or for people the message and the tool's stack.
func (a *app) printError(e *toolmesh.Error) {
	if a.json {
		a.printJSON(map[string]any{"error": e})
		return
	}
	kind := cmp.Or(e.Type, string(e.Code)) // a Go tool's error may have no useful type
	switch {
	case e.Code != toolmesh.CodeToolError:
		fmt.Fprintf(a.err, "mesh: %s\n", e.Message)
	case e.Message == "": // raise RuntimeError
		fmt.Fprintln(a.err, a.term.strong(kind))
	default:
		fmt.Fprintf(a.err, "%s %s\n", a.term.strong(kind+":"), e.Message)
	}
	if e.Code == toolmesh.CodePermissionDenied {
		fmt.Fprintln(a.err, "name the file of a key with this right by --nkey FILE or MESH_NATS_NKEY")
	}
	var problems []string
	if e.Code == toolmesh.CodeInstallFailed {
		problems = textsOf(e, "errors") // all faults of a manifest
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

// textsOf returns a detail that is a list of texts, else nil.
func textsOf(e *toolmesh.Error, detail string) []string {
	data, _ := json.Marshal(e.Details[detail])
	var texts []string
	if json.Unmarshal(data, &texts) != nil {
		return nil
	}
	return texts
}
