package main

import (
	"context"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bridge"
	"github.com/toolmesh/toolmesh/subjects"
)

func (a *app) bridgeCommand() *cobra.Command {
	var packed bool
	cmd := &cobra.Command{
		Use: "bridge", Short: "Speak with a program on stdin and stdout: for languages without a NATS client",
		Long: `Speak frames with the program that started it, on stdin and stdout: the program
calls tools of the mesh, and offers tools of its own as a node. A frame is four bytes of
length, big-endian, and an object in JSON; docs/bridge.md lists the types.

It ends with its stdin, which removes the program's tools at once. On SIGTERM, SIGINT or
a frame {"type":"drain"} running calls end first.`,
		Args: nothing,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.bridge(cmd.Context(), packed) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&packed, "msgpack", false, "MessagePack in place of JSON, both ways")
	settings.Bind(flags, &a.set.Serving)
	return cmd
}

// bridge is the command. Only frames may go to stdout.
func (a *app) bridge(ctx context.Context, packed bool) error {
	defer process.Pace()()
	process.OutliveReaders() // a program that closes its pipe has ended: its tools must be removed
	a.log = process.Logger(a.err, a.set.Logging, slog.LevelWarn)
	session := subjects.SessionID(a.set.Session.Session)
	l, err := a.connectAs(ctx, "mesh-bridge", access.Node)
	if err != nil {
		return err
	}
	defer l.close()
	if none := l.noMesh(ctx); none != nil {
		return none
	}
	serving := a.set.Serving
	b, err := bridge.New(l.bus, &bridge.Options{
		Session: session, Node: subjects.NodeID(serving.Node), Slots: serving.Slots, Labels: serving.Labels,
		MaxTimeout: a.set.MaxTimeout, Version: process.ThisBuild(version, commit).Version,
		MessagePack: packed, Logger: a.log,
	})
	if err != nil {
		return err
	}
	return b.Run(ctx, a.in, a.frames)
}
