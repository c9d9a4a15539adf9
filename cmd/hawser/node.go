package main

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/hawser-kv/hawser/cmd/config"
)

// startNode starts the node of this process.
func startNode(context.Context, config.Config, *zap.Logger) (server, error) {
	return nil, errors.New("this build has no node")
}
