// Contender: Go's net/http, with the endpoints that src/lib.rs lists.
//
// Usage: rival-go PORT THREADS DIR
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	_ "github.com/mattn/go-sqlite3"
)

const (
	text = "Hello, World!"
	// Number of messages that a slow socket of /broadcast may lag behind.
	backlog = 64
)

type message struct {
	Message string `json:"message"`
}

type item struct {
	ID         int64  `json:"id"`
	Name       string `json:"name"`
	PriceCents int64  `json:"price_cents"`
}

func plain(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, body)
}

func asJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(value)
}

func sleeping(time_ms time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(time_ms * time.Millisecond)
		plain(w, text)
	}
}

func find(items *sql.Stmt) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var found item
		id, _ := strconv.ParseInt(r.URL.Query().Get("id"), 10, 64)
		row := items.QueryRowContext(r.Context(), id)
		if err := row.Scan(&found.ID, &found.Name, &found.PriceCents); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		asJSON(w, found)
	}
}

func upload(w http.ResponseWriter, r *http.Request) {
	length, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, "", http.StatusBadRequest)
		return
	}
	plain(w, fmt.Sprintln(length))
}

func echo(w http.ResponseWriter, r *http.Request) {
	socket, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer socket.CloseNow()
	for {
		kind, bytes, err := socket.Read(r.Context())
		if err != nil {
			return
		}
		if socket.Write(r.Context(), kind, bytes) != nil {
			return
		}
	}
}

// room holds a channel for each socket of /broadcast.
type room struct {
	sync.Mutex
	hearers map[chan []byte]struct{}
}

func (room *room) hear(w http.ResponseWriter, r *http.Request) {
	socket, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer socket.CloseNow()
	hearer := make(chan []byte, backlog)
	room.Lock()
	room.hearers[hearer] = struct{}{}
	room.Unlock()
	defer func() {
		room.Lock()
		delete(room.hearers, hearer)
		room.Unlock()
	}()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		for {
			select {
			case bytes := <-hearer:
				if socket.Write(ctx, websocket.MessageText, bytes) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		_, bytes, err := socket.Read(ctx)
		if err != nil {
			return
		}
		room.Lock()
		for hearer := range room.hearers {
			select {
			case hearer <- bytes:
			default: // A slow socket misses the message.
			}
		}
		room.Unlock()
	}
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: PORT THREADS DIR")
	}
	threads, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	runtime.GOMAXPROCS(threads)
	dir := os.Args[3]
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "items.sqlite")+"?mode=ro")
	if err != nil {
		log.Fatal(err)
	}
	items, err := db.Prepare("SELECT id, name, price_cents FROM items WHERE id = ?")
	if err != nil {
		log.Fatal(err)
	}
	text500 := strings.Repeat("x", 500)
	hall := &room{hearers: map[chan []byte]struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /text", func(w http.ResponseWriter, _ *http.Request) { plain(w, text) })
	mux.HandleFunc("GET /pooled", func(w http.ResponseWriter, _ *http.Request) { plain(w, text) })
	mux.HandleFunc("GET /text500", func(w http.ResponseWriter, _ *http.Request) { plain(w, text500) })
	mux.HandleFunc("GET /json", func(w http.ResponseWriter, _ *http.Request) {
		body, _ := json.Marshal(message{text})
		w.Header().Set("Content-Type", "application/json")
		w.Write(body)
	})
	mux.HandleFunc("GET /sleep10", sleeping(10))
	mux.HandleFunc("GET /sleep1000", sleeping(1000))
	mux.HandleFunc("GET /item", find(items))
	for _, name := range []string{"file", "big"} {
		path := filepath.Join(dir, name)
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			http.ServeFile(w, r, path)
		})
	}
	mux.HandleFunc("POST /upload", upload)
	mux.HandleFunc("GET /ws", echo)
	mux.HandleFunc("GET /broadcast", hall.hear)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], mux))
}
