# Three allocations of a group know their numbers.
# prints: shard 0 of 3
# prints: shard 1 of 3
# prints: shard 2 of 3

job "shards" {
  type = "batch"

  group "shard" {
    count = 3

    task "work" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo shard $NOMAD_ALLOC_INDEX of $SHARDS"]
      }

      env {
        SHARDS = "3"
      }
    }
  }
}
