job "web
