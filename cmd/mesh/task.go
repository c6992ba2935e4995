package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/codec"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) taskCommand() *cobra.Command {
	about := func(use, short, past string, do func(*client.Task, context.Context) (*client.TaskInfo, error)) *cobra.Command {
		return a.completes(&cobra.Command{
			Use: use + " TASK", Short: short, Args: takes(1, 1, "a task"),
			RunE: a.onMesh(func(ctx context.Context, l *link, args []string) error {
				info, err := do(l.client.Task(subjects.RPCID(args[0])), ctx)
				switch {
				case err != nil:
					return err
				case past != "":
					a.tell(info, past, info.ID, info.State)
				case a.json:
					a.printJSON(info)
				default:
					a.showTask(info)
				}
				return nil
			}),
		}, taskIDs)
	}
	return group("task", "Submit calls as durable tasks, and follow them",
		a.completes(a.taskSubmit(), toolNames), a.taskList(),
		about("show", "Show one task", "", (*client.Task).Show), a.completes(a.taskWait(), taskIDs),
		about("cancel", "Stop a task, or a schedule", "%s is %s", (*client.Task).Cancel),
		about("retry", "Run a task again that failed or was cancelled", "%s is %s", (*client.Task).Retry), a.completes(a.taskRemove(), taskIDs))
}

func taskIDs(ctx context.Context, l *link) ([]string, error) {
	all, err := l.client.Tasks(ctx, "")
	ids := make([]string, len(all))
	for i, t := range all {
		ids[i] = fmt.Sprintf("%s\t%s, %s", t.ID, t.Tool, t.State)
	}
	return ids, err
}

func (a *app) taskSubmit() *cobra.Command {
	var o client.SubmitOptions
	var id string
	cmd := &cobra.Command{
		Use: "submit TOOL [JSON|-|@file] [name=value|name:=json]…", Short: "Submit a call as a durable task, and print its id",
		Long: "Submit a call as a durable task and print its id at once. The task outlives this command, nodes that\nfail and restarts of the NATS server.\n\n" + argumentForms,
		Example: `  mesh task wait $(mesh task submit demo.films.render film=alien)
  mesh task submit shop.orders.remind order=A-1041 --in 1h
  mesh task submit weather.forecast.today city=Oslo --cron '0 7 * * *'`,
		Args: takes(1, -1, "a tool"),
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			given := func(name string) bool { return cmd.Flags().Changed(name) }
			if len(slices.DeleteFunc([]string{"at", "in", "every", "cron"}, func(name string) bool { return !given(name) })) > 1 {
				return usage(cmd, "--at, --in, --every and --cron exclude each other: give one")
			}
			if given("attempts") && o.Attempts < 1 {
				return usage(cmd, "--attempts is %d: give at least 1", o.Attempts)
			}
			return nil
		},
		RunE: runE(func(ctx context.Context, args []string) error {
			tool := subjects.ToolID(args[0])
			if err := tool.Validate(); err != nil {
				return usage(nil, "%q is not a tool id: %s", tool, err.Error())
			}
			g, err := parseArguments(args[1:], a.stdin(ctx))
			if err != nil {
				return err
			}
			return a.withMesh(ctx, func(ctx context.Context, l *link) error {
				body, err := l.body(ctx, &tool, g)
				if err != nil {
					return err
				}
				o.ID = subjects.RPCID(id)
				task, err := l.client.Submit(ctx, tool, body, &o)
				if err != nil {
					return err
				}
				a.say(map[string]any{"id": task.ID()}, task.ID())
				return nil
			})
		}),
	}
	flags := cmd.Flags()
	wordFlag(cmd, &id, "id", "name the task: the same `ID` again is the same task (default a new one)")
	wordFlag(cmd, &o.Key, "key", "the call's idempotency `KEY`: what has begun under it is never run again")
	flags.IntVar(&o.Attempts, "attempts", 0, "how often the tool may be run (default 3)")
	flags.IntVar(&o.Priority, "priority", 0, "1, 0 or -1: of a session's tasks the higher ones run first")
	durationFlag(cmd, &o.TTL, "ttl", time.Millisecond, "the `TIME` that the result is kept, and how long it may take until there is one (default 24h)")
	durationFlag(cmd, &o.Timeout, "timeout", time.Millisecond, "the `TIME` of each attempt (default what the tool declares)")
	flags.Func("at", "the `TIME` at which it starts, like 2026-01-02T15:04:05", func(text string) (err error) {
		if o.At, err = parseTime(text); err != nil {
			err = errors.New("want a time like 2026-01-02T15:04:05, here or with Z or +01:00 behind it elsewhere")
		}
		return err
	})
	durationFlag(cmd, &o.In, "in", time.Millisecond, "the `TIME` after which it starts")
	durationFlag(cmd, &o.Every, "every", time.Millisecond, "submit one each time this `TIME` has passed, until the task is cancelled")
	wordFlag(cmd, &o.Cron, "cron", "submit one at the times of a cron `line`, in UTC, until the task is cancelled")
	wordFlag(cmd, &o.CatchUp, "catch-up", "what a schedule submits for times that were missed: `none`, one or all, of the last 100 (default one)", codec.CatchUps()...)
	return cmd
}

// parseTime parses a time, local unless it has a zone.
func parseTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		at, err = time.ParseInLocation("2006-01-02T15:04:05", text, time.Local)
	}
	if err != nil {
		at, err = time.ParseInLocation("2006-01-02T15:04", text, time.Local)
	}
	return at, err
}

func (a *app) taskWait() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "wait TASK", Short: "Wait for the end of a task, and print its result as mesh call does", Args: takes(1, 1, "a task"),
		RunE: a.onMesh(func(ctx context.Context, l *link, args []string) error {
			id := subjects.RPCID(args[0])
			waiting := ctx
			if timeout > 0 {
				var cancel context.CancelFunc
				waiting, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			done := a.running(string(id)+" runs", "; Ctrl-C leaves it running")
			result, err := l.client.Task(id).Wait(waiting)
			done()
			return a.printResult(ctx, l, id, result, "", err)
		}),
	}
	durationFlag(cmd, &timeout, "timeout", time.Millisecond, "the `TIME` to wait; the task goes on (default until it ends)")
	return cmd
}

func (a *app) taskList() *cobra.Command {
	var state codec.TaskState
	cmd := &cobra.Command{
		Use: "ls", Short: "List the session's tasks", Args: nothing,
		RunE: a.onMesh(func(ctx context.Context, l *link, _ []string) error {
			all, err := l.client.Tasks(ctx, state)
			if err != nil {
				return err
			}
			columns := []string{"TASK", "TOOL", "STATE", "ATTEMPTS", "PROGRESS", "TIME", "ERROR"}
			printAll(a, "tasks", all, fmt.Sprintf("session %s has no tasks", l.session), columns, func(t client.TaskInfo) []string {
				return []string{
					string(t.ID), string(t.Tool), string(t.State), strconv.Itoa(t.Attempts) + "/" + strconv.Itoa(t.MaxAttempts), cmp.Or(progressText(t.Progress), "-"), timeText(&t), cmp.Or(errorText(t.Error), "-"),
				}
			})
			return nil
		}),
	}
	wordFlag(cmd, &state, "state", "only those that are `STATE`: "+join(codec.TaskStates(), ""), codec.TaskStates()...)
	return cmd
}

func (a *app) taskRemove() *cobra.Command {
	var state codec.TaskState
	ended := slices.DeleteFunc(codec.TaskStates(), func(s codec.TaskState) bool { return !s.Ended() })
	var older time.Duration
	cmd := &cobra.Command{
		Use: "rm [TASK]", Short: "Remove tasks that have ended", Args: takes(0, 1, "a task, or none for all that have ended"),
		Long: "Remove an ended task, or all ended tasks of the session, with their results. A schedule stays until its last\ntask has ended.",
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (state != "" || older != 0) {
				return usage(cmd, "a task and --state or --older: name one task, or say which")
			}
			return nil
		},
		RunE: a.onMesh(func(ctx context.Context, l *link, args []string) error {
			n, err := 0, error(nil)
			if len(args) == 0 {
				n, err = l.client.RemoveTasks(ctx, state, older)
			} else if ok, bad := l.client.Task(subjects.RPCID(args[0])).Remove(ctx); bad != nil {
				err = bad
			} else if ok {
				n = 1
			}
			if err != nil {
				return err
			}
			a.tell(map[string]any{"removed": n}, "%d tasks removed", n)
			return nil
		}),
	}
	wordFlag(cmd, &state, "state", "only those that are `STATE`: "+join(ended, ""), ended...)
	durationFlag(cmd, &older, "older", 0, "only those that ended this `TIME` ago, or longer")
	return cmd
}

// timeText returns when a task ended, started, or is due.
func timeText(t *client.TaskInfo) string {
	switch {
	case t.Cron != "":
		return "cron " + t.Cron
	case t.EveryMS > 0:
		return "every " + span(t.EveryMS)
	}
	at := t.Created
	for _, later := range []time.Time{t.Due, t.Started, t.Ended} {
		if !later.IsZero() {
			at = later
		}
	}
	return localTime(at)
}

// span formats a number of milliseconds, "" for none.
func span(ms int64) string {
	if ms == 0 {
		return ""
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// progressText describes the progress of a task, "" for none.
func progressText(p *codec.Progress) string {
	switch {
	case p == nil:
		return ""
	case p.Fraction == nil:
		return p.Text
	}
	return strings.TrimSpace(strconv.Itoa(int(100**p.Fraction)) + "% " + p.Text)
}

// errorText describes the failure of a task, "" for none.
func errorText(e *toolmesh.Error) string {
	if e == nil {
		return ""
	}
	return string(e.Code) + ": " + firstLine(e.Message)
}

func (a *app) showTask(t *client.TaskInfo) {
	a.facts(
		"task", string(t.ID), "tool", string(t.Tool), "args", cmp.Or(string(t.Args), "{}"), "state", string(t.State),
		"attempts", strconv.Itoa(t.Attempts)+" of "+strconv.Itoa(t.MaxAttempts), "priority", strconv.Itoa(t.Priority),
		"created", localTime(t.Created), "due", localTime(t.Due), "started", localTime(t.Started), "ended", localTime(t.Ended),
		"ttl", span(t.TTLMS), "node", cmp.Or(string(t.Node), "-"), "key", t.Key, "schedule", string(t.Schedule), "cron", t.Cron,
		"result", string(t.Result), "every", span(t.EveryMS), "progress", progressText(t.Progress), "error", errorText(t.Error))
}
