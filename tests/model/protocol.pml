/*
 * How a batch is held, handed over and settled by two triggerers, as tests/model/README.md explains it: who stops holding it
 * extends it once, writes it down and forgets it; who starts holding it reads what is written.
 *
 * Two messages that were received together; another consumer, who takes whatever is visible; a user; crashes and stalls.
 * Everything is one loop of guarded steps, so a crash, a stall or the other triggerer comes between any two of them.
 * There is no clock. What the code ensures by seconds is a guard here, marked "Time:".
 *
 * Each rule of the protocol can be taken out by -DWITHOUT_<rule>. CRASHES, STALLS, MARKS, KEEPER_CLEARS, RUN_CLEARS and
 * TIMEOUTS say how often each of these may happen; with MESSAGES=1 the second message does not take part.
 */

#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef STALLS
#define STALLS 0
#endif
#ifndef MARKS
#define MARKS 0
#endif
#ifndef KEEPER_CLEARS
#define KEEPER_CLEARS 0
#endif
#ifndef RUN_CLEARS
#define RUN_CLEARS 0
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif

/* A message at the service, and whose receipt handle is the newest. */
#define VISIBLE 0
#define IN_FLIGHT 1
#define DELETED 2
byte place[2] = VISIBLE;
#define FIRST_RECEIPT 0
#define SECOND_RECEIPT 1 /* that of the run after it was cleared */
#define ANOTHER_CONSUMER 2
byte newest[2] = ANOTHER_CONSUMER;

/* The work on a message, by batch: 0 was received first, 1 by the run after it was cleared. */
#define NO_WORK 0
#define AT_WORK 1
#define SUCCEEDED 2
#define FAILED 3
#define KILLED 4
byte work[4];
#define WORK(b, m) work[(b) * 2 + (m)]

/* The keeper's task, as Airflow's database has it; where its trigger is to run; the XComs about the batch. */
#define NOT_RECEIVED 0
#define NOT_STARTED 1
#define BEGINS 2
#define DEFERRED 3
#define ENDED 4
byte keeper = NOT_RECEIVED;
byte assigned = 0;
bit tried_before = 0;
bit cleared = 0; /* the run was, and has not received again */
byte batch = 0;  /* the run's */
#define NO_NOTE 2
byte noted_batch = NO_NOTE; /* of the receiving task: it is left when the keeper's task begins again */
bit noted[2];
bit on_its_way[2]; /* by batch: extended for its next holder, and held by nobody */

/* The triggerers. */
#define DEAD 0
#define STANDS_STILL 1
#define UP 2
byte triggerer[2] = UP;
bit quiet[2]; /* it stood still, and has not heard yet what happened meanwhile */

/* What a triggerer does about a batch. */
#define NOTHING 0
#define KEEPS 1
#define GIVES_BACK 2
#define RECEIVES 3
byte role[4];
#define ROLE(b, t) role[(b) * 2 + (t)]
/* What it knows of a message, and its calls that are under way. */
#define NOT_HELD 0
#define HELD 1
#define DECIDED 2 /* to be settled, not sent */
#define SENT 3
#define DONE 4
byte lease[8];
bit lapsed[8];
bit extending[8];
bit extended[8];
#define NO_CALL 0
#define DELETES 1
#define RELEASES 2
byte intended[8];
byte settling[8];
#define AT(b, t, m) ((b) * 4 + (t) * 2 + (m))

/* What happened, for the invariants alone. */
bit settled[4];    /* by this receipt: it was deleted or released */
bit has_lapsed[4]; /* this receipt's lease */
byte crashes, stalls, marks, keeper_clears, run_clears, timeouts;
bit sent_again;
bit was_late; /* the keeper was not there in time, and what was held for it was given up */

#define SETTLED(b, m) settled[(b) * 2 + (m)]
#define HAS_LAPSED(b, m) has_lapsed[(b) * 2 + (m)]
#define FAULTS (crashes + stalls)
#define ACTIONS (marks + keeper_clears + run_clears + was_late)

#define OTHER(t) (1 - (t))
#define IS_UP(t) (triggerer[t] == UP)
#define HOLDS(b, t, m) \
  (IS_UP(t) && ROLE(b, t) != NOTHING && (lease[AT(b, t, m)] == HELD || lease[AT(b, t, m)] == DECIDED))
#define EXTENDS(b, t) (extending[AT(b, t, 0)] || extending[AT(b, t, 1)])
#define NOTE_IS_ABOUT(b) (noted_batch == (b))
#ifdef WITHOUT_NOTES_NAME_THEIR_BATCH
#define IS_READ_AS_ABOUT(b) (noted_batch != NO_NOTE)
#else
#define IS_READ_AS_ABOUT(b) NOTE_IS_ABOUT(b)
#endif

inline forget(b, t) {
  ROLE(b, t) = NOTHING;
  lease[AT(b, t, 0)] = NOT_HELD;
  lease[AT(b, t, 1)] = NOT_HELD;
  intended[AT(b, t, 0)] = NO_CALL;
  intended[AT(b, t, 1)] = NO_CALL;
  lapsed[AT(b, t, 0)] = 0;
  lapsed[AT(b, t, 1)] = 0
}

inline write_note(b, t) {
  noted_batch = b;
  noted[0] = lease[AT(b, t, 0)] >= DECIDED;
  noted[1] = lease[AT(b, t, 1)] >= DECIDED
}

inline give_back_one(b, t, m) {
  if
  :: lease[AT(b, t, m)] == HELD -> lease[AT(b, t, m)] = DECIDED; intended[AT(b, t, m)] = RELEASES
  :: else
  fi
}

/* Not about a batch of before the run was cleared: the note would take the place of one about the new batch. */
inline note_end(b) {
  if
#ifndef WITHOUT_NOTE_OF_GIVING_BACK
  :: !cleared && batch == (b) -> noted_batch = b; noted[0] = 1; noted[1] = 1
#endif
  :: else
  fi
}

inline give_back(b, t) {
  ROLE(b, t) = GIVES_BACK;
  note_end(b);
  give_back_one(b, t, 0);
  give_back_one(b, t, 1)
}

/* From the arguments of the trigger, and the note. What lapsed is not always known: it may be taken for lapsed, but
 * never the other way round. */
inline hold_unless_settled(b, t, m) {
  if
  :: IS_READ_AS_ABOUT(b) && noted[m] -> lease[AT(b, t, m)] = DONE
  :: WORK(b, m) == NO_WORK -> lease[AT(b, t, m)] = DONE
  :: else ->
    lease[AT(b, t, m)] = HELD;
    if
    :: lapsed[AT(b, t, m)] = 1
    :: !HAS_LAPSED(b, m) -> lapsed[AT(b, t, m)] = 0
    fi
  fi
}

/* What the run's work says about a message of a batch: Airflow's states are the run's, whichever batch it worked on. */
#define SAYS(b, m, how) \
  (batch == (b) && WORK(b, m) == how || batch != (b) && (WORK(batch, 0) == how || WORK(batch, 1) == how))

/* ---------------------------------------------------------------- the service */

#define SERVICE(b, t, m) \
  :: atomic { extending[AT(b, t, m)] -> printf("an extension of message %d by triggerer %d arrives\n", m, t); \
      \
      extending[AT(b, t, m)] = 0; \
      if \
      :: place[m] == IN_FLIGHT && newest[m] == (b) -> skip \
      :: place[m] == IN_FLIGHT && newest[m] != (b) -> assert(!SETTLED(b, m)) /* 3: nothing settled is extended */ \
      :: else -> if :: lease[AT(b, t, m)] == HELD -> lease[AT(b, t, m)] = DONE /* lost */ :: else fi \
      fi } \
  :: atomic { settling[AT(b, t, m)] == DELETES -> printf("the deletion of message %d by triggerer %d arrives\n", m, t); \
      \
      assert(WORK(b, m) == SUCCEEDED); /* 1: nothing is deleted whose work did not succeed */ \
      settling[AT(b, t, m)] = NO_CALL; \
      place[m] = DELETED; \
      SETTLED(b, m) = 1; \
      answer(b, t, m) } \
  :: atomic { settling[AT(b, t, m)] == RELEASES -> printf("the release of message %d by triggerer %d arrives\n", m, t); \
      \
      settling[AT(b, t, m)] = NO_CALL; \
      if \
      :: place[m] == IN_FLIGHT -> \
        assert(newest[m] == (b)); /* 3: nothing that somebody else has is released */ \
        assert(WORK(b, m) != AT_WORK || ACTIONS); /* 2: nothing that is worked on is given away */ \
        place[m] = VISIBLE; \
        SETTLED(b, m) = 1; \
        if \
        :: answer(b, t, m) \
        :: !sent_again -> lose_answer(b, t, m) \
        fi \
      :: else -> answer(b, t, m) \
      fi }

inline answer(b, t, m) {
  if
  :: lease[AT(b, t, m)] == SENT ->
    lease[AT(b, t, m)] = DONE;
#ifdef WITHOUT_NOTE_BEFORE_THE_CALL
    if
    :: IS_UP(t) && ROLE(b, t) == KEEPS -> write_note(b, t)
    :: else
    fi
#endif
  :: else
  fi
}

inline lose_answer(b, t, m) {
  sent_again = 1;
#ifdef WITHOUT_RELEASING_ONCE
  if
  :: lease[AT(b, t, m)] == SENT -> lease[AT(b, t, m)] = DECIDED; intended[AT(b, t, m)] = RELEASES
  :: else
  fi
#else
  answer(b, t, m)
#endif
}

/* Time: a lease ends only when no process extends it; a release is sent only while its lease outlasts the call. */
#ifdef WITHOUT_MARGIN_FOR_A_RELEASE
#define IS_BEING_RELEASED(b, m) 0
#else
#define IS_BEING_RELEASED(b, m) (settling[AT(b, 0, m)] == RELEASES || settling[AT(b, 1, m)] == RELEASES)
#endif

#define IS_KEPT_BY_ITS_TRIGGER(b) \
  (keeper == DEFERRED && batch == (b) && IS_UP(assigned) && ROLE(b, assigned) == KEEPS)

/* Time: what is on its way lasts for the hand-off timeout, and that ends so often. */
#ifdef WITHOUT_EXTENDING_FOR_THE_NEXT_HOLDER
#define MAY_END(b) 1
#else
#define MAY_END(b) (!on_its_way[b] || timeouts < TIMEOUTS)
#endif

#define EXPIRY(b, m) \
  :: atomic { place[m] == IN_FLIGHT && newest[m] == (b) && !HOLDS(b, 0, m) && !HOLDS(b, 1, m) \
      && !IS_BEING_RELEASED(b, m) && MAY_END(b) -> printf("the lease of message %d ends\n", m); \
      \
      if :: on_its_way[b] && timeouts < TIMEOUTS -> timeouts++; was_late = 1 :: else fi; \
      assert(WORK(b, m) != AT_WORK || ACTIONS || FAULTS && !IS_KEPT_BY_ITS_TRIGGER(b)); \
      /* 2: nothing that is worked on comes back, unless nobody was there who could extend it */ \
      place[m] = VISIBLE; \
      HAS_LAPSED(b, m) = 1; \
      lapsed[AT(b, 0, m)] = 1; \
      lapsed[AT(b, 1, m)] = 1 }

#define CONSUMER(m) \
  :: atomic { place[m] == VISIBLE && (keeper != NOT_RECEIVED || FAULTS) -> \
      printf("another consumer receives message %d\n", m); place[m] = IN_FLIGHT; newest[m] = ANOTHER_CONSUMER }

/* ---------------------------------------------------------------- Airflow, its workers, and its user */

/* Time: a cleared run is noticed before what it receives next has been worked on. */
#ifdef WITHOUT_WATCHING_FOR_CLEARS
#define IS_NOTICED 1
#else
#define IS_NOTICED ((!IS_UP(0) || ROLE(0, 0) == NOTHING) && (!IS_UP(1) || ROLE(0, 1) == NOTHING))
#endif

#define WORKER(b, m) \
  :: atomic { WORK(b, m) == AT_WORK && ((b) == 0 || IS_NOTICED) -> printf("the work on message %d ends\n", m); \
      \
      if \
      :: WORK(b, m) = SUCCEEDED \
      :: WORK(b, m) = FAILED \
      fi }

/* Airflow deletes the XComs of a task when its next try begins. Time: by then the trigger of the last one has
 * ended, and its last calls have arrived; the next one waits for that. */
#ifdef WITHOUT_NOTES_OUTLIVE_TRIES
#define LOSE_NOTE noted_batch = NO_NOTE
#else
#define LOSE_NOTE skip
#endif
#define IS_KEPT(t) \
  (IS_UP(t) && ROLE(batch, t) == KEEPS || \
   ROLE(batch, t) == NOTHING && (extending[AT(batch, t, 0)] || extending[AT(batch, t, 1)]))

#define SCHEDULER \
  :: atomic { keeper == NOT_STARTED && !cleared && !IS_KEPT(0) && !IS_KEPT(1) -> printf("the keeper's task begins\n"); \
      \
      keeper = BEGINS; \
      if :: tried_before -> LOSE_NOTE :: else fi } \
  :: atomic { keeper == BEGINS -> printf("the keeper's task is deferred\n"); \
      \
      keeper = DEFERRED; \
      if \
      :: assigned = 0 \
      :: assigned = 1 \
      fi }

/* Time: before Airflow takes a triggerer for dead, the last calls of that one have arrived, and the other one knows
 * whether its own triggers are still its own. */
#define HAS_CALLS(b, t) \
  (EXTENDS(b, t) || settling[AT(b, t, 0)] || settling[AT(b, t, 1)])

#define REASSIGNMENT(t) \
  :: atomic { keeper == DEFERRED && assigned == (t) && !IS_UP(t) && IS_UP(OTHER(t)) && \
      !HAS_CALLS(0, t) && !HAS_CALLS(1, t) && HAS_NO_NEWS(OTHER(t)) -> \
      printf("Airflow gives the trigger to triggerer %d\n", OTHER(t)); assigned = OTHER(t) }

/* Each message is held from the moment it comes. Nobody else knows of them before they are published, and no work begins. */
#define RECEIVE(m) \
  :: atomic { keeper == NOT_RECEIVED && IS_UP(0) && ROLE(0, 0) == RECEIVES && place[m] == VISIBLE && \
      lease[AT(0, 0, m)] == NOT_HELD -> printf("triggerer 0 receives message %d\n", m); \
      \
      place[m] = IN_FLIGHT; newest[m] = FIRST_RECEIPT; lease[AT(0, 0, m)] = HELD }

#define HAS_RECEIVED(m) (lease[AT(0, 0, m)] != NOT_HELD || place[m] != VISIBLE)

#define PUBLISH \
  :: atomic { IS_UP(0) && ROLE(0, 0) == RECEIVES && !quiet[0] && HAS_RECEIVED(0) && HAS_RECEIVED(1) && \
      !EXTENDS(0, 0) -> \
      if \
      :: lease[AT(0, 0, 0)] == HELD || lease[AT(0, 0, 1)] == HELD -> \
        printf("triggerer 0 extends the batch, publishes and forgets it\n"); keeper = NOT_STARTED; begin(0); begin(1); \
        hand_on(0, 0) \
      :: else -> forget(0, 0) /* all were lost */ \
      fi } \
  :: atomic { IS_UP(0) && ROLE(0, 0) == RECEIVES && stalls -> printf("Airflow lets another triggerer receive\n"); \
      give_back(0, 0) }

/* Time: its extensions under way have arrived. */
inline hand_on(b, t) {
  forget(b, t);
  on_its_way[b] = 1
}

inline begin(m) {
  if
  :: lease[AT(0, 0, m)] == HELD -> WORK(0, m) = AT_WORK
  :: else -> lease[AT(0, 0, m)] = DONE
  fi
}

/* The worker of the next try gives back what no keeper has begun to hold. */
#define GIVES_BACK_WHAT_IS_ON_ITS_WAY(m) \
  :: atomic { cleared && on_its_way[0] && place[m] == IN_FLIGHT && newest[m] == FIRST_RECEIPT -> \
      printf("the next try gives message %d back\n", m); place[m] = VISIBLE; SETTLED(0, m) = 1 }

#define RECEIVES_AGAIN(t) \
  :: atomic { cleared && IS_UP(t) && (place[0] == VISIBLE || place[1] == VISIBLE) -> printf("triggerer %d receives again\n", t); \
      \
      cleared = 0; \
      batch = 1; \
      noted_batch = NO_NOTE; \
      receive(t, 0); \
      receive(t, 1); \
      hand_on(1, t) }

inline receive(t, m) {
  if
  :: place[m] == VISIBLE ->
    place[m] = IN_FLIGHT;
    newest[m] = SECOND_RECEIPT;
    WORK(1, m) = AT_WORK
  :: else
  fi
}

inline kill_work(m) {
  if
  :: WORK(0, m) == AT_WORK -> WORK(0, m) = KILLED
  :: else
  fi
}

inline do_again(m) {
  if
  :: WORK(batch, m) == FAILED -> WORK(batch, m) = AT_WORK
  :: else
  fi
}

#define USER \
  :: atomic { marks < MARKS && keeper != ENDED && keeper != NOT_RECEIVED && !cleared -> \
      printf("the user marks the keeper\n"); marks++; keeper = ENDED } \
  :: atomic { keeper_clears < KEEPER_CLEARS && (keeper == DEFERRED || keeper == ENDED && !cleared) -> \
      printf("the user clears the keeper, with failed work if it has ended\n"); \
      \
      if :: keeper == ENDED && !marks -> do_again(0); do_again(1) :: else fi; \
      keeper_clears++; keeper = NOT_STARTED; tried_before = 1 } \
  :: atomic { run_clears < RUN_CLEARS && !cleared && keeper != ENDED && keeper != NOT_RECEIVED -> \
      printf("the user clears the run\n"); \
      \
      run_clears++; cleared = 1; keeper = NOT_STARTED; tried_before = 1; kill_work(0); kill_work(1) }

/* ---------------------------------------------------------------- crashes and stalls */

#define FAULT(t) \
  :: atomic { crashes < CRASHES && triggerer[t] != DEAD -> printf("triggerer %d crashes\n", t); \
      \
      crashes++; triggerer[t] = DEAD; quiet[t] = 0; forget(0, t); forget(1, t) } \
  :: atomic { stalls < STALLS && IS_UP(t) -> printf("triggerer %d stands still\n", t); stalls++; triggerer[t] = STANDS_STILL } \
  :: atomic { triggerer[t] == STANDS_STILL -> printf("triggerer %d goes on\n", t); triggerer[t] = UP; wake(t) }

/* Time: within its quiet seconds it hears which of its triggers run elsewhere. */
inline wake(t) {
#ifndef WITHOUT_QUIET_AFTER_A_STALL
  quiet[t] = 1
#else
  skip
#endif
}

#define IS_NEWS(b, t) (ROLE(b, t) == KEEPS && (keeper != DEFERRED || assigned != (t) || batch != (b)))

#define HAS_NO_NEWS(t) (!IS_NEWS(0, t) && !IS_NEWS(1, t))

#define HEARS(t) \
  :: atomic { IS_UP(t) && quiet[t] && HAS_NO_NEWS(t) -> quiet[t] = 0 }

/* ---------------------------------------------------------------- a triggerer: leases */

#define KEEPER(b, t, m) \
  :: atomic { IS_UP(t) && !quiet[t] && ROLE(b, t) != NOTHING && lease[AT(b, t, m)] == HELD && \
      !extending[AT(b, t, m)] && !extended[AT(b, t, m)] -> printf("triggerer %d sends an extension of message %d\n", t, m); \
      \
      extending[AT(b, t, m)] = 1; extended[AT(b, t, m)] = 1 /* once: when is open, so more often shows no more */ } \
  :: atomic { MAY_SETTLE(b, t) && lease[AT(b, t, m)] == HELD && \
      (SAYS(b, m, SUCCEEDED) || SAYS(b, m, FAILED)) -> printf("triggerer %d decides on message %d\n", t, m); \
      \
      if :: SAYS(b, m, SUCCEEDED) -> intended[AT(b, t, m)] = DELETES \
         :: SAYS(b, m, FAILED) -> intended[AT(b, t, m)] = RELEASES fi; \
      lease[AT(b, t, m)] = DECIDED; \
      NOTE_AHEAD(b, t) } \
  :: atomic { MAY_SETTLE(b, t) && !NOTE_IS_ABOUT(b) -> \
      printf("triggerer %d notes how long its leases last\n", t); write_note(b, t) } \
  :: atomic { IS_UP(t) && !quiet[t] && ROLE(b, t) != NOTHING && lease[AT(b, t, m)] == DECIDED && \
      IS_READY(b, t, m) -> printf("triggerer %d settles message %d\n", t, m); \
      \
      if \
      :: intended[AT(b, t, m)] == RELEASES && KNOWN_TO_HAVE_LAPSED(b, t, m) -> lease[AT(b, t, m)] = DONE \
      :: else -> lease[AT(b, t, m)] = SENT; settling[AT(b, t, m)] = intended[AT(b, t, m)] \
      fi; \
      intended[AT(b, t, m)] = NO_CALL }

#ifdef WITHOUT_NOTE_BEFORE_THE_CALL
#define NOTE_AHEAD(b, t) skip
#else
#define NOTE_AHEAD(b, t) write_note(b, t)
#endif

#ifdef WITHOUT_WAITING_FOR_EXTENSIONS
#define IS_READY(b, t, m) 1
#else
#define IS_READY(b, t, m) (!extending[AT(b, t, m)])
#endif

#ifdef WITHOUT_KEEPING_WHAT_LAPSED
#define KNOWN_TO_HAVE_LAPSED(b, t, m) 0
#else
#define KNOWN_TO_HAVE_LAPSED(b, t, m) lapsed[AT(b, t, m)]
#endif

#define MAY_SETTLE(b, t) \
  (IS_UP(t) && !quiet[t] && ROLE(b, t) == KEEPS && keeper == DEFERRED)

/* ---------------------------------------------------------------- a triggerer: the keeper's trigger */

#define TRIGGER(b, t) \
  :: atomic { IS_UP(t) && !quiet[t] && keeper == DEFERRED && assigned == (t) && batch == (b) && ROLE(b, t) == NOTHING -> \
      printf("the trigger starts in triggerer %d, and adopts\n", t); \
      ROLE(b, t) = KEEPS; \
      on_its_way[b] = 0; \
      hold_unless_settled(b, t, 0); \
      hold_unless_settled(b, t, 1) } \
  :: atomic { IS_UP(t) && ROLE(b, t) == KEEPS && keeper == DEFERRED && batch == (b) && !quiet[t] && \
      lease[AT(b, t, 0)] == DONE && lease[AT(b, t, 1)] == DONE -> \
      printf("the keeper ends\n"); note_end(b); keeper = ENDED; forget(b, t) } \
  :: atomic { IS_UP(t) && ROLE(b, t) == GIVES_BACK && lease[AT(b, t, 0)] != HELD && lease[AT(b, t, 0)] != DECIDED && \
      lease[AT(b, t, 0)] != SENT && lease[AT(b, t, 1)] != HELD && lease[AT(b, t, 1)] != DECIDED && \
      lease[AT(b, t, 1)] != SENT -> forget(b, t) } \
  NOTICES_CLEAR(b, t) \
  ENDED_FROM_OUTSIDE(b, t)

/* Airflow ends the trigger of a cleared task only when that task is scheduled again. */
#define IS_GONE(b) (keeper != DEFERRED && !cleared || keeper == DEFERRED && batch != (b))

#ifdef WITHOUT_WATCHING_FOR_CLEARS
#define NOTICES_CLEAR(b, t)
#else
#define NOTICES_CLEAR(b, t) \
  :: atomic { IS_UP(t) && !quiet[t] && ROLE(b, t) == KEEPS && (cleared || batch != (b)) -> \
      printf("triggerer %d sees that the run was cleared\n", t); give_back(b, t) }
#endif

#ifdef WITHOUT_STAYING_OUT_AFTER_A_STALL
#define STAYS_OUT(t) 0
#else
#define STAYS_OUT(t) quiet[t]
#endif

#define IS_THE_NEXT_TRYS(b) (keeper == NOT_STARTED || keeper == BEGINS)
#define IS_ANOTHERS(b) (keeper == DEFERRED && batch == (b))
#define IS_CLOSED(b) (NOTE_IS_ABOUT(b) && noted[0] && noted[1])

/* Airflow ends a trigger whose task is not deferred any more, or is another triggerer's. */
#define ENDED_FROM_OUTSIDE(b, t) \
  :: atomic { IS_UP(t) && ROLE(b, t) == KEEPS && !(IS_THE_NEXT_TRYS(b) && EXTENDS(b, t)) && IS_GIVEN_BACK(b) && \
      (IS_GONE(b) || keeper == DEFERRED && batch == (b) && assigned != (t)) -> printf("Airflow ends the trigger in triggerer %d\n", t); \
      \
      if \
      :: STAYS_OUT(t) || IS_ANOTHERS(b) || IS_CLOSED(b) -> forget(b, t) \
      :: else -> \
        if \
        :: IS_THE_NEXT_TRYS(b) && !cleared && batch == (b) -> \
          write_note(b, t); hand_on(b, t) \
        :: else -> give_back(b, t) \
        fi \
      fi }

#ifdef WITHOUT_GIVING_BACK_WHAT_ENDED
#define IS_GIVEN_BACK(b) (keeper != ENDED)
#else
#define IS_GIVEN_BACK(b) 1
#endif

#define NOT_HELD_FOR_EVER(b, t, m) (!IS_UP(t) || ROLE(b, t) == NOTHING || lease[AT(b, t, m)] != HELD)

init {
  atomic {
    ROLE(0, 0) = RECEIVES;
#if MESSAGES == 1
    place[1] = DELETED; lease[AT(0, 0, 1)] = DONE
#endif
  }
  do
  SERVICE(0, 0, 0) SERVICE(0, 0, 1) SERVICE(0, 1, 0) SERVICE(0, 1, 1)
  EXPIRY(0, 0) EXPIRY(0, 1)
  CONSUMER(0) CONSUMER(1)
  WORKER(0, 0) WORKER(0, 1)
  RECEIVE(0) RECEIVE(1) PUBLISH
  SCHEDULER
  REASSIGNMENT(0) REASSIGNMENT(1)
  USER
  FAULT(0) FAULT(1)
  HEARS(0) HEARS(1)
  KEEPER(0, 0, 0) KEEPER(0, 0, 1) KEEPER(0, 1, 0) KEEPER(0, 1, 1)
  TRIGGER(0, 0) TRIGGER(0, 1)
#if RUN_CLEARS
  SERVICE(1, 0, 0) SERVICE(1, 0, 1) SERVICE(1, 1, 0) SERVICE(1, 1, 1)
  EXPIRY(1, 0) EXPIRY(1, 1)
  WORKER(1, 0) WORKER(1, 1)
  GIVES_BACK_WHAT_IS_ON_ITS_WAY(0) GIVES_BACK_WHAT_IS_ON_ITS_WAY(1)
  RECEIVES_AGAIN(0) RECEIVES_AGAIN(1)
  KEEPER(1, 0, 0) KEEPER(1, 0, 1) KEEPER(1, 1, 0) KEEPER(1, 1, 1)
  TRIGGER(1, 0) TRIGGER(1, 1)
#endif
  :: else ->
    /* Nothing is left to happen. 1: none is held for ever. */
    assert(NOT_HELD_FOR_EVER(0, 0, 0) && NOT_HELD_FOR_EVER(0, 0, 1) && NOT_HELD_FOR_EVER(0, 1, 0)
      && NOT_HELD_FOR_EVER(0, 1, 1) && NOT_HELD_FOR_EVER(1, 0, 0) && NOT_HELD_FOR_EVER(1, 0, 1)
      && NOT_HELD_FOR_EVER(1, 1, 0) && NOT_HELD_FOR_EVER(1, 1, 1));
    /* Without a fault, successful work deletes its message; what failed is another consumer's. */
    assert(FAULTS || marks || WORK(0, 0) != SUCCEEDED || ACTIONS || place[0] == DELETED);
    assert(FAULTS || marks || WORK(0, 1) != SUCCEEDED || ACTIONS || place[1] == DELETED);
    assert(FAULTS || marks || keeper_clears || WORK(1, 0) != SUCCEEDED || place[0] == DELETED);
    assert(FAULTS || marks || keeper_clears || WORK(1, 1) != SUCCEEDED || place[1] == DELETED);
    /* Or it is on its way to a keeper that never comes, until the hand-off timeout ends. */
    assert(WORK(0, 0) != FAILED || on_its_way[0] || place[0] == IN_FLIGHT && newest[0] != FIRST_RECEIPT || WORK(1, 0));
    assert(WORK(0, 1) != FAILED || on_its_way[0] || place[1] == IN_FLIGHT && newest[1] != FIRST_RECEIPT || WORK(1, 1));
    break
  od
}
