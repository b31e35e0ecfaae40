# What `nomad job init -short` asks for, in its blocks and keys, with its image's name on another image.
# meanwhile: grep -q 'answers PONG' $OUT
# prints: answers PONG
# status: 143

job "example" {
  group "cache" {
    network {
      port "db" {
        to = 6379
      }
    }

    task "redis" {
      driver = "docker"

      config {
        image          = "redis:7"
        ports          = ["db"]
        auth_soft_fail = true
      }

      identity {
        env  = true
        file = true
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
