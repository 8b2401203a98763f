module samovar/rival-go

go 1.24

require (
	github.com/coder/websocket v1.8.15
	github.com/mattn/go-sqlite3 v1.14.53
)
