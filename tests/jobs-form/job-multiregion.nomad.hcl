job "job-multiregion" {
  multiregion {
    strategy {
      max_parallel = 1
      on_failure = "fail_all"
    }
    region "west" {
      count = 2
      datacenters = ["w1"]
      node_pool = "p"
      meta {
        a = "b"
      }
    }
    region "east" {
    }
  }
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
