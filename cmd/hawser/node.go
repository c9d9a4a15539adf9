package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/cmd/config"
	"github.com/hawser-kv/hawser/cmd/node"
)

// startNode starts the node of this process.
func startNode(ctx context.Context, c config.Config, lg *zap.Logger) (server, error) {
	n, err := node.Start(ctx, node.Config{Config: c, Logger: lg})
	if err != nil {
		return nil, err // not a nil *node.Node in an interface
	}
	return n, nil
}
